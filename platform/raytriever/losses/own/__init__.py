"""Losses that users write: a function of a score matrix in a file of theirs (docs/tutorials/own-loss.md)."""
