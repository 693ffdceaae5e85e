"""Measurements of the training loop: tokens and FLOPs per second, the time of each phase of a step, slow workers."""
