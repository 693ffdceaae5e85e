"""An operator's day: run directories, the cache and the machine, inspected and cleaned."""
