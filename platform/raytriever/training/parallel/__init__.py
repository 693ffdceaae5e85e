"""Data parallelism: strategies (DDP, ZeRO), the process group, gradient caching and the model state on each worker."""
