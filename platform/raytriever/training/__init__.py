"""Training of one encoder: settings, loop, batches, optimizer, checkpoints, validation, and resuming."""
