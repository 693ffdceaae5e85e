"""Earlier path of `losses.rows`, from which losses in users' files import."""

from raytriever.losses.batch import first_positive
from raytriever.losses.rows import RowLoss, all_positives, softplus

__all__ = ["RowLoss", "all_positives", "first_positive", "softplus"]
