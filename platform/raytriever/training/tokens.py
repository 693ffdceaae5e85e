"""Which tokens a retriever wants of a data set."""

from __future__ import annotations

from raytriever.data.tokenise import Tokenisation
from raytriever.models.retriever import Retriever
from raytriever.models.tokenisation import content_tokenizer_json


def tokenisation_of(retriever: Retriever) -> Tokenisation:
    """How data sets are tokenised for a retriever: its tokenizer, its prefixes; lengths are settings of reading."""
    return Tokenisation(
        content_tokenizer_json(retriever.tokenizer),
        retriever.description.query_prefix,
        retriever.description.passage_prefix,
    )
