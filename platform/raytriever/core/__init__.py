"""Core: errors, settings, terminal, processes, checked readers and storage. It imports no other subpackage."""
