"""Hostile commands as data: what is given, how it must end, and what must not be left."""
