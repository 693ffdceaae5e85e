"""Evaluation of retrieval systems: measures, significance, calibration, tables and files."""
