"""Scores of a cross-encoder as a teacher, for distillation."""
