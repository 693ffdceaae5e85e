"""Rows to examples: formats, checks, the embedded data set, and the order of training."""
