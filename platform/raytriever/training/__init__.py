"""Training of one encoder: settings, loop, batches, optimizer, checkpoints, validation, and how a run resumes."""
