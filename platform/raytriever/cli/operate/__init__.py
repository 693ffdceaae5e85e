"""Stages that operate runs and machines."""
