"""Positives that a language model finds among what several retrievers found."""
