"""MTEB (Muennighoff et al., 2023, arXiv:2210.07316): evaluation on its tasks, and our encoders as its models.

`mteb` is an optional dependency, so it is imported only inside functions of this package."""
