"""Metrics as pure functions of arrays: rankings, pooled scores, and the tests that compare systems."""
