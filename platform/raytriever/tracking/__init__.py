"""Experiment tracking: the metrics, settings and files of a run, buffered on disk and sent to MLflow."""
