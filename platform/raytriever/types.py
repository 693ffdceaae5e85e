"""Names for the tensors and arrays that cross module boundaries.

Shapes are written with jaxtyping; the tests check them at run time with beartype.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int64
from numpy import ndarray
from torch import Tensor

QueryEmbeddings = Float[Tensor, "queries width"]
CandidateEmbeddings = Float[Tensor, "candidates width"]
Scores = Float[Tensor, "queries candidates"]
PositiveMask = Bool[Tensor, "queries candidates"]
DocumentIds = Int64[Tensor, " candidates"]
Embeddings = Float[ndarray, "texts width"]
