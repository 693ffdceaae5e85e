"""Experiments: runs, sweeps and studies from settings to report; recipes, exports and an operator's commands."""
