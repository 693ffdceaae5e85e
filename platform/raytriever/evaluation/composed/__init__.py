"""Retrieval systems made from other systems or from files: fusions, rerankings, run files and vectors."""
