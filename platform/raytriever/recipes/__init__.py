"""Functions that return a whole configuration, one file an experiment."""
