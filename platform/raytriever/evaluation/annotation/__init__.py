"""Annotation of queries: a language model selects positives among the candidates of several retrievers."""
