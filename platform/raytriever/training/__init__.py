"""Training of one encoder: the loop, its batches, its optimizer, its checkpoints and how a run resumes."""
