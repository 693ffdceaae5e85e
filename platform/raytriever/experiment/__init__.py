"""One experiment from checked settings to its report: opening, stages, recording, conclusion."""
