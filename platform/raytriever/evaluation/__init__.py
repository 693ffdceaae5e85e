"""Evaluation of retrieval systems: figures, significance, thresholds, tables; MTEB; annotation by a language model."""
