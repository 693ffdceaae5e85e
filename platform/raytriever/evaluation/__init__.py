"""Evaluation of retrieval systems: metrics, significance, thresholds, tables and MTEB; annotation by an LLM."""
