"""What a ranking is worth: pure functions of arrays."""
