"""Encode a corpus, search it, and measure the rankings."""
