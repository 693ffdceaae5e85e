"""One experiment from checked settings to its report: open, train, record, evaluate."""
