"""Experiment tracking: metrics, settings and files of a run are stored on disk, and sent to MLflow or others."""
