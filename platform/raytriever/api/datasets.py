"""Public API for data sets, from files and from memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from raytriever.api import tables_in_memory as tables
from raytriever.api.calls import checked, public, working
from raytriever.core.errors import ConfigError, DataError
from raytriever.core.setting_declarations import check_options
from raytriever.core.terminal import warn
from raytriever.data.data_settings import SplitConfig
from raytriever.data.data_sources import Files
from raytriever.data.formats.train_dev_test import Fractions, fractions_of

if TYPE_CHECKING:
    import datasets
    import pandas

    from raytriever.api.models import ModelLike
    from raytriever.data.data_settings import DataConfig

Texts = Mapping[str, "str | Mapping[str, str]"]
Grades = Mapping[str, Mapping[str, Mapping[str, int]]]


class Dataset:
    """Checked data set for retrieval: documents, queries, and judgements of which documents answer which query.

    It is made by `load_dataset`, from a folder of documents by `from_documents`, or from data in memory by `from_dict`,
    `from_pandas` or `from_huggingface`. Data in memory is first written to the cache, under the digest of its content.
    Then it is checked like files: a bad row is left out and listed in `bad_rows`. Too many bad rows are an error.

    Attributes:
        name: name of the data set in tables and file names.
        source: the path, URI or name of the data; the commands take it as `--dataset`.
        splits: names of the splits that have judgements, sorted.
        counts: numbers of documents and queries, and numbers of queries, judgements and positives of each split.
            `SPLIT_unanswerable` is the number of queries of a split that no document answers, if there are any.
        bad_rows: a dictionary with `file`, `row`, `reason` and `raw` for each row that was left out.

    Examples:
        >>> data = rt.load_dataset(folder)
        >>> data.splits
        ['dev', 'test', 'train']
        >>> data.counts["documents"]
        160
    """

    def __init__(self, source: str, name: str, max_bad_rows: float, opened: Any) -> None:
        self.source, self.name, self.max_bad_rows = source, name, max_bad_rows
        self.splits: list[str] = sorted(opened.judgements)
        self.counts: dict[str, int] = opened.counts()
        self.bad_rows: list[dict[str, Any]] = [dict(entry) for entry in opened.quarantine.entries]

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {self.counts['documents']:,} documents, {self.counts['queries']:,} queries, "
            f"splits {', '.join(self.splits) or 'none'})"
        )

    @classmethod
    @public
    def from_dict(
        cls, documents: Texts, queries: Mapping[str, str], judgements: Grades, *,
        unanswerable: Mapping[str, Iterable[str]] | None = None, name: str = "memory", max_bad_rows: float = 0.01,
    ) -> Dataset:  # fmt: skip
        """Make a data set from dictionaries, in the form that BEIR's loader returns.

        Args:
            documents: `{id: text}` or `{id: {"title": ..., "text": ...}}`.
            queries: `{id: text}`.
            judgements: `{split: {query id: {document id: grade}}}`. A grade is a whole number; above 0 means relevant.
                Training needs the split `train` and evaluates on `test`. Without `dev`, a tenth of `train` is held out.
            unanswerable: `{split: [query id]}` of the queries that no document answers.
            name: name of the data set, of letters, digits, `.`, `_` and `-`.
            max_bad_rows: fraction of rows that may be bad, 0 to 1.

        Raises:
            DataError: an argument does not have this form, or too many rows are bad.
            StorageError: the cache cannot be written.

        Examples:
            >>> documents = {"d1": {"title": "Vienna", "text": "It lies on the Danube."}, "d2": "Graz lies on the Mur."}
            >>> queries = {"q1": "which river flows through vienna"}
            >>> rt.Dataset.from_dict(documents, queries, {"test": {"q1": {"d1": 1}}}, name="rivers")
            Dataset('rivers': 2 documents, 1 queries, splits test)
        """
        return _from_files(
            cls, tables.text_files(documents, queries, judgements, unanswerable or {}), name, max_bad_rows
        )

    @classmethod
    @public
    def from_pandas(
        cls,
        frame: pandas.DataFrame,
        queries: pandas.DataFrame | None = None,
        judgements: pandas.DataFrame | None = None,
        *,
        query: str = "query",
        passage: str = "passage",
        split: str | None = None,
        test_fraction: float | None = None,
        dev_fraction: float | None = None,
        name: str = "frame",
        max_bad_rows: float = 0.01,
    ) -> Dataset:
        """Make a data set from one frame of pairs, or from three frames with ids.

        One frame: a row holds a query and a passage that answers it. The columns `negative`, `negative_1`, `negative_2`
        and so on may hold hard negatives. The column `split` assigns rows to `train`, `dev` and `test`.
        Without this column, the queries are divided by the digest of their text. `dev` and `test` each get a tenth of
        the queries, or 50 if that is more, but at most three tenths. `train` gets the rest. If no document answers a
        query, its row has an empty passage and `no`, `false` or `0` in the column `answerable`.

        Three frames: documents with the columns `id`, `text` and optionally `title`; queries with `id` and `text`;
        judgements with `query_id`, `document_id`, `score` (a whole number; above 0 means relevant) and
        optionally `split`. Without `split` all judgements belong to `test`. If no document answers a query,
        its row in `queries` has `no` in the column `answerable`, and its split in the column `split` (default `test`).

        Args:
            frame: the pairs, or the documents.
            queries: the queries, if `frame` holds documents.
            judgements: the judgements, if `frame` holds documents.
            query: column of queries in a frame of pairs; by default `query`, `question` or `anchor`.
            passage: column of passages in a frame of pairs; by default `passage`, `answer`, `positive` or `text`.
            split: column of splits; by default `split`, if there is one.
            test_fraction: fraction of the queries in the split `test`, 0 to 1; only for pairs without a column of
                splits.
            dev_fraction: the same for the split `dev`.
            name: name of the data set, of letters, digits, `.`, `_` and `-`.
            max_bad_rows: fraction of rows that may be bad, 0 to 1.

        Raises:
            ConfigError: a fraction is out of range, or has no effect.
            DataError: a column is missing, or too many rows are bad (empty texts, ids that are not unique).
            StorageError: the cache cannot be written.

        Examples:
            >>> import pandas as pd
            >>> frame = pd.DataFrame({"question": ["a?", "b?", "c?"], "passage": ["A.", "B.", "C."]})
            >>> rt.Dataset.from_pandas(frame, query="question", name="faq")
            Dataset('faq': 3 documents, 3 queries, splits dev, test, train)
        """
        if (queries is None) != (judgements is None):
            raise ConfigError("queries or judgements are missing", None, "give both, or a table of pairs alone")
        check_options(config := SplitConfig(test_fraction, dev_fraction))
        fractions = fractions_of(config)
        if queries is None:
            files = tables.pair_files(tables.frame_table("pairs", frame), query, passage, split, fractions)
        else:
            tables.refuse_fractions(fractions, "the table of judgements")
            asked, judged = tables.frame_table("queries", queries), tables.frame_table("judgements", judgements)
            files = tables.judged_tables(tables.frame_table("documents", frame), asked, judged, split)
        return _from_files(cls, files, name, max_bad_rows)

    @classmethod
    @public
    def from_huggingface(
        cls, splits: datasets.DatasetDict | datasets.Dataset, *, name: str = "hub", max_bad_rows: float = 0.01
    ) -> Dataset:
        """Make a data set from a `datasets.DatasetDict` or a `datasets.Dataset`.

        A `DatasetDict` has one of two forms. In the first, each split holds rows of a known training format, such as
        `anchor`, `positive` and `negative` of sentence-transformers. In the second (BEIR on the hub), `corpus`
        and `queries` hold texts; every other split holds judgements (`query-id`, `corpus-id`, `score`). A `Dataset`
        holds pairs of a query and a passage. Its queries are divided like those of a frame; see `from_pandas`.

        Args:
            splits: the splits, or one table of pairs.
            name: name of the data set, of letters, digits, `.`, `_` and `-`.
            max_bad_rows: fraction of rows that may be bad, 0 to 1.

        Raises:
            DataError: `splits` has another type, its columns match no known format, or too many rows are bad.
            StorageError: the cache cannot be written.

        Examples:
            >>> import datasets
            >>> rows = datasets.Dataset.from_dict({"anchor": ["a?", "b?", "c?"], "positive": ["A.", "B.", "C."]})
            >>> rt.Dataset.from_huggingface(datasets.DatasetDict({"train": rows}), name="faq").splits
            ['train']
        """
        return _from_files(cls, tables.hub_tables(splits), name, max_bad_rows)

    @classmethod
    @public
    def from_documents(
        cls,
        folder: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        questions: str | os.PathLike[str] | None = None,
        columns: str = "",
        model: ModelLike = "minilm",
        chunk_tokens: int | None = None,
        overlap_tokens: int | None = None,
        seed: int = 0,
        test_fraction: float | None = None,
        dev_fraction: float | None = None,
        test_questions: str | os.PathLike[str] | None = None,
    ) -> Dataset:
        """Divide a folder of Markdown, HTML, text and PDF files into passages.

        No passage exceeds the encoder's limit. A document and its questions are in the same split. Standard error shows
        how much was read and skipped; `output/quarantine.jsonl` lists each skipped file or question with the reason.

        Args:
            folder: path or URI of the documents.
            output: folder in which the data set is written. An earlier import in this folder is replaced;
                its files and questions keep their splits.
            questions: CSV, TSV or JSONL file of questions with the columns `question` and `file`, and optionally
                `answer`, `anchor`, `id`, `split` and `answerable`. If no document answers a question, write `none` as
                its `file`, or `no` as its `answerable`. Without questions the passages can be searched, but there is
                nothing to train on.
            columns: names of the columns of `questions`, if they differ, such as `question=Frage,file=Datei`.
            model: the encoder whose tokenizer and maximum length determine the passages.
            chunk_tokens: largest number of tokens of a passage with its title; by default the encoder's maximum length.
            overlap_tokens: number of tokens that a passage repeats from the end of the previous one; by default an
                eighth of a passage.
            seed: seed of the random division into splits.
            test_fraction: fraction of the questions in the split test, 0 to 1; by default 0.1, or more if the split
                would have fewer than 50 questions, but at most 0.3.
            dev_fraction: fraction of the questions in the split dev; the default is chosen in the same way.
            test_questions: file of the test questions, with the same columns. `questions` then has the other questions.

        Raises:
            ConfigError: a number is out of range, or a package that reads the documents is not installed. Or an earlier
                import in `output` has another seed, has questions although this one has none, or has only other files.
            DataError: there is no document, or no question can be matched.
            ModelError: the encoder cannot be found.
            StorageError: `output` is not the folder of an import, is damaged, has other files, or cannot be written.

        Examples:
            >>> from pathlib import Path
            >>> Path("handbook").mkdir()
            >>> _ = Path("handbook/pump.md").write_text("# Pump\\n\\nMoves water.\\n\\n## Repair\\n\\nChange the seal.")
            >>> rt.Dataset.from_documents("handbook", "passages")
            Dataset('passages': 2 documents, 0 queries, splits none)
        """
        from raytriever.api.models import path_of, settings_of
        from raytriever.core.paths import DOCUMENTS
        from raytriever.data.data_settings import ImportConfig
        from raytriever.data.documents.import_folder import import_folder
        from raytriever.data.documents.import_summary import summary_lines

        config = ImportConfig(
            test_fraction=test_fraction,
            dev_fraction=dev_fraction,
            test_questions=os.fspath(test_questions or ""),
            questions=os.fspath(questions or ""),
            columns=columns,
            chunk_tokens=chunk_tokens,
            overlap_tokens=overlap_tokens,
            seed=seed,
        )
        checked(config)
        DOCUMENTS.check(os.fspath(folder), "folder")
        path = path_of(output)
        with working("from_documents", path):
            settings = settings_of(model)
            summary = import_folder(os.fspath(folder), path, config, settings, warn)
        for line in summary_lines(summary, config, settings.model):
            warn(line)
        return _load(cls, str(path), None, max_bad_rows=0.0)


@public
def load_dataset(
    path: str | os.PathLike[str],
    *,
    query: str | None = None,
    passage: str | None = None,
    split: str | None = None,
    name: str | None = None,
    max_bad_rows: float = 0.01,
) -> Dataset:
    """Check and prepare a data set on disk, in an object store or on the hub.

    A data set that was prepared before is loaded from the cache. Every row is checked. A bad row is left out and listed
    in `bad_rows` of the result.

    Args:
        path: a folder or file in a known format (BEIR, sentence-transformers, Tevatron, DPR, FlagEmbedding, pairs,
            CSV, `save_to_disk`), a URI such as `s3://bucket/data`, `hf://datasets/ORG/NAME`, `ir_datasets:NAME`, a
            prepared data set, or `pydocs`.
        query: column of queries of a CSV or TSV file, if its name is not recognized.
        passage: column of passages of such a file.
        split: column of splits of such a file.
        name: name of the data set in tables; by default the name of the folder or file.
        max_bad_rows: fraction of each file's rows that may be bad, 0 to 1.

    Raises:
        DataError: there is no such data set or column, its format is unknown, a file is damaged, or too many rows are
            bad.
        StorageError: the cache cannot be written.

    Examples:
        >>> rt.load_dataset(folder)
        Dataset('letters': 160 documents, 160 queries, splits dev, test, train)
    """
    if query is None and passage is None and split is None:
        return _load(Dataset, os.fspath(path), name, max_bad_rows)
    files = tables.pair_files(tables.csv_table(path), query or "query", passage or "passage", split, Fractions())
    of_file = re.sub(r"[^A-Za-z0-9._-]", "-", os.fspath(path).rsplit("/", 1)[-1]).lstrip("._-")
    return _from_files(Dataset, files, name or of_file or "table", max_bad_rows)


def source_of(data: Dataset | str | os.PathLike[str]) -> str:
    """Return the path, URI or name of a data set. Raises `ConfigError` for any other type."""
    if isinstance(data, Dataset):
        return data.source
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    raise ConfigError(f"has the type {type(data).__name__}", "data", "give the result of load_dataset, or a path")


def data_settings(data: Dataset | str | os.PathLike[str]) -> DataConfig:
    """Return the settings that open a data set. Raises the errors of `source_of`."""
    from raytriever.data.data_settings import DataConfig

    if isinstance(data, Dataset):
        return DataConfig(dataset=data.source, max_bad_rows=data.max_bad_rows)
    return DataConfig(dataset=source_of(data))


def _load(kind: type[Dataset], source: str, name: str | None, max_bad_rows: float) -> Dataset:
    from raytriever.data.data_settings import DataConfig
    from raytriever.data.prepare.open_dataset import open_all_splits
    from raytriever.data.prepare.prepare_dataset import in_processes

    checked(DataConfig(dataset=source, max_bad_rows=max_bad_rows))
    with working("load_dataset"):
        opened = open_all_splits(source, max_bad_rows=max_bad_rows, run=in_processes, log=warn)
    return kind(source, name or opened.name, max_bad_rows, opened)


def _from_files(kind: type[Dataset], files: Files, name: str, max_bad_rows: float) -> Dataset:
    if not tables.NAME.fullmatch(name):
        raise DataError(f"{name!r} is not a valid data set name", "name", "use letters, digits, '.', '_' and '-'")
    folder = files.write(name)
    try:
        return _load(kind, str(folder), name, max_bad_rows)
    except DataError as error:
        files.name_tables(error, folder)
        raise
