"""Experiments: runs, sweeps and studies, from settings to report; recipes, exports and commands for operators."""
