"""Differences between systems that are more than chance: against the first system, of all pairs, over seeds."""
