"""Scores and ids in, a loss and its gradients out: pure functions of tensors."""
