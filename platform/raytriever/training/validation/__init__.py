"""Validation of checkpoints during training: its settings, its records on disk and the decision to stop early."""
