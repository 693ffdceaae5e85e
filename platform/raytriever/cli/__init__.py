"""The command line: it parses the flags, calls the package and prints the result."""
