"""Plan of what a corpus takes at any size: bytes, hours, nodes and money of each stage, from measured coefficients."""
