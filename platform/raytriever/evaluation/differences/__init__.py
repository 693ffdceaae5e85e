"""Differences between systems that are more than chance: against the first system, and of all pairs."""
