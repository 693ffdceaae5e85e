"""Losses: functions of embeddings and ids that return a value and its gradients."""
