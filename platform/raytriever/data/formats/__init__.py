"""The formats in which training data is published, one file each: the meaning of their rows, and their signature."""
