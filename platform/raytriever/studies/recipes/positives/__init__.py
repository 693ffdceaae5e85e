"""Studies of the tables in *Training dense retrievers with multiple positive passages*."""
