"""The embedded data set `pydocs`: docstrings of the installed Python packages as questions and answers."""
