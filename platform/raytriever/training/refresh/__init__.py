"""Refresh of hard negatives during training: settings, rounds, and the state machine of all workers."""
