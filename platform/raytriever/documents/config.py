"""Settings of the import of documents. It imports nothing heavy, for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.data.config import SplitConfig
from raytriever.errors import flag_of
from raytriever.options import option
from raytriever.paths import QUESTIONS


@dataclass(frozen=True)
class ImportConfig(SplitConfig):
    """Questions, size of the passages, and the splits."""

    questions: str = option(
        "",
        "CSV, TSV or JSONL file of questions with the columns question and file, and perhaps answer, anchor, id, "
        "answerable and split",
        reads=QUESTIONS,
        form="FILE",
    )
    columns: str = option(
        "",
        f"columns of {flag_of('questions')} that have other names, such as `question=Frage,file=Datei`",
        needs="questions",
    )
    chunk_tokens: int | None = option(
        None, "largest number of tokens of a passage with its title (default: what the encoder reads)", minimum=16
    )
    overlap_tokens: int | None = option(
        None, "tokens that a passage repeats of the one before it (default: an eighth of a passage)", minimum=0
    )
    seed: int = option(0, "seed of the splits", minimum=0)
