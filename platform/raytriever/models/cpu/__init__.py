"""Layers of encoders on a CPU: attention, dropout, and linear layers of 8-bit integers."""
