"""MTEB (Muennighoff et al., 2023, arXiv:2210.07316): its tasks on our encoders, and our encoders as its models.

Only functions of this package import `mteb`, which is an extra.
"""
