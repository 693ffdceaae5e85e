"""Training under Ray Train: trainer, workers, controller callbacks, checkpoint validation and hard-negative refresh."""
