"""Hyperparameter search: search space, samplers, trial log and figures of a sweep."""
