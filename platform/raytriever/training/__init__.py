"""A step, a loop, a schedule, a checkpoint."""
