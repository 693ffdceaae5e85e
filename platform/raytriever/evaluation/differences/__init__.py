"""Significance of differences between systems: against the first system, between all pairs, and over seeds."""
