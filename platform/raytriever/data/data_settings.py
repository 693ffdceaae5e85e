"""Settings of the data and of the import of documents. This module imports quickly, because `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from raytriever.core.errors import ConfigError, flag_of, setting
from raytriever.core.paths import DATASET, DATASETS, NEGATIVES, QUESTIONS, SCORES
from raytriever.core.setting_declarations import option
from raytriever.data.languages import AUTO, LANGUAGES


@dataclass(frozen=True)
class SplitConfig:
    """Settings that divide questions into train, dev and test, if no column or file name gives the split."""

    test_fraction: float | None = option(
        None,
        "fraction of the questions that are test (default: 0.1, or up to 0.3 to get 50 questions)",
        minimum=0,
        maximum=1,
    )
    dev_fraction: float | None = option(
        None, f"fraction of the questions that are dev (default: as {flag_of('test_fraction')})", minimum=0, maximum=1
    )
    test_questions: str = option(
        "",
        "second file with the same columns, whose questions are all test; the others are then train and dev",
        reads=QUESTIONS,
        metavar="FILE",
    )


@dataclass(frozen=True)
class DataConfig:
    """Settings of data sets, their splits, the training examples made from them, and the allowed fraction of bad
    rows."""

    dataset: str = option(
        "pydocs", "`pydocs`, path or URI; see docs/reference/formats.md", reads=DATASET, metavar="PATH"
    )
    extra_datasets: str = option(
        "", "further data sets to train on, separated by commas", reads=DATASETS, metavar="PATH,PATH"
    )
    train_split: str = option("train", "split that is trained on")
    dev_split: str = option("dev", "split for validation, which decides when training stops")
    test_split: str = option("test", "split that is evaluated before and after training")
    allow_split_overlap: bool = option(
        False, "allow training on an evaluated split, or on more than 5 % of its queries"
    )
    max_bad_rows: float = option(
        0.01, "fraction of a file's rows that may be bad before the job stops", minimum=0, maximum=1
    )
    positives_per_query: int = option(1, "largest number of positives of a query in its group", minimum=1)
    negatives_per_query: int = option(0, "hard negatives sampled for each query", minimum=0)
    positives: str = option(
        "all",
        "sources of positives: all, one source, or a human positive first and then LLM positives",
        choices=("all", "human", "llm", "human-first"),
    )
    positives_order: str = option(
        "sampled",
        "selection of positives: sampled in each epoch, or ranked: always the best-ranked ones",
        choices=("sampled", "ranked"),
    )
    negatives_table: str = option(
        "",
        "hard negatives of `raytriever mine` (default: found by BM25)",
        reads=NEGATIVES,
        metavar="PATH",
        needs="negatives_per_query",
    )
    negatives_mix: str = option(
        "",
        "fractions of the hard negatives by origin (gold, bm25, dense, cross-query, random), such as "
        "`bm25=0.5,random=0.5` (default: all negatives of a query have equal weight)",
        needs="negatives_per_query",
        flag=False,
    )
    teacher: str = option(
        "",
        "scores of positives and hard negatives by a teacher, written by `raytriever score`; for several data sets one "
        "path each in their order, separated by commas",
        reads=SCORES,
        metavar="PATH",
    )
    dataset_weights: str = option(
        "",
        f"weights of {flag_of('dataset')} and {flag_of('extra_datasets')}, in their order, such as `2,1` (default: "
        "their sizes)",
        needs="extra_datasets",
        flag=False,
    )
    mixing: str = option(
        "examples",
        "mix several data sets within each batch (examples), or take each batch from one of them (batches)",
        choices=("examples", "batches"),
        needs="extra_datasets",
        flag=False,
    )
    bm25_language: str | None = option(
        None,
        "language of BM25's analyzer: `auto` or a code such as `zh`; `other` has words without stems "
        "(default: auto, by script and function words)",
        choices=(AUTO, *LANGUAGES),
        flag=False,
    )
    duplicates: bool = option(True, "allow two queries with a common positive in one batch")

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data set for training and evaluation, followed by the data sets for training only."""
        return (self.dataset, *(name for part in self.extra_datasets.split(",") if (name := part.strip())))

    @property
    def teachers(self) -> tuple[str, ...]:
        """For each data set, the path of its teacher scores ("" if it has none). Empty if no data set has a teacher."""
        return tuple(part.strip() for part in self.teacher.split(",")) if self.teacher.strip() else ()

    def check(self) -> None:
        """Raise `ConfigError` if two of the splits for training, validation and evaluation are equal."""
        for first, second in combinations(("train_split", "dev_split", "test_split"), 2):
            split = getattr(self, first)
            if split == getattr(self, second) and not self.allow_split_overlap:
                what = f"the split {split!r} is also the value of {setting(second)}, so the metrics would mislead"
                where = setting(first)
                raise ConfigError(what, where, f"give another split, or {setting('allow_split_overlap', True)}")


@dataclass(frozen=True)
class ImportConfig(SplitConfig):
    """Questions, size of the passages, and the splits."""

    questions: str = option(
        "",
        "CSV, TSV or JSONL file of questions with the columns question and file, and perhaps answer, anchor, id, "
        "answerable and split",
        reads=QUESTIONS,
        metavar="FILE",
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
        None, "tokens of the previous passage that a passage repeats (default: an eighth of a passage)", minimum=0
    )
    seed: int = option(0, "seed of the splits", minimum=0)
