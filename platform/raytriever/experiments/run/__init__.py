"""One experiment from checked settings to its report: opening, training, recording, conclusion."""
