"""Training data of a run, opened the same way by the driver and by every worker.

The model is evaluated on the first data set. The training splits of the other data sets are appended to the training
split of the first (`combine`). The dev loss uses the dev split of the first data set only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from raytriever.core.errors import DataError, setting
from raytriever.data.combine_datasets import combine, starts_of
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import Log, Runner, ignore_line, in_this_process
from raytriever.data.sampling.batch_order import Order
from raytriever.data.sampling.dataset_mixture import arrange
from raytriever.data.sampling.teacher_scores import Coverage, TeacherTable, read_scores
from raytriever.data.sampling.training_examples import Examples, parse_mix
from raytriever.training.batch_loader import Batches
from raytriever.training.guide_encoder import Guide, GuideTexts


@dataclass(frozen=True)
class TrainingData:
    """Opened and tokenized data sets of a run, and the settings of its batches. Each data set has its training split;
    the first one also has its dev split. The false-negative guide, if there is one, also reads the texts of batches."""

    datasets: Sequence[RetrievalDataset]
    config: DataConfig
    batch_size: int
    seed: int
    guide: Guide | None = None

    @classmethod
    def open(
        cls,
        names: Sequence[str],
        config: DataConfig,
        tokenization: Tokenization,
        batch_size: int,
        seed: int,
        also: Sequence[str] = (),
        run: Runner = in_this_process,
        log: Log = ignore_line,
    ) -> TrainingData:
        """Open the data sets. Prepare those that are not prepared yet.

        Args:
            names: names of the data sets as configured, or paths of prepared data sets.
            also: other splits of the first data set that are also opened.
            run, log: see `open_dataset`.
        """
        opened = []
        for index, name in enumerate(names):
            splits = [config.train_split] if index else [config.train_split, config.dev_split, *also]
            opened.append(
                open_dataset(
                    name,
                    splits,
                    max_bad_rows=config.max_bad_rows,
                    bm25_language=config.bm25_language,
                    tokenization=tokenization,
                    run=run,
                    log=log,
                )
            )
        return cls(opened, config, batch_size, seed)

    def train(self, negatives: NegativesTable | None) -> Batches:
        """Return the training batches. Raises `DataError` or `ConfigError` if no batch can be made from the data."""
        split, config = self.config.train_split, self.config
        only = [replace(dataset, judgements={split: dataset.judgements[split]}) for dataset in self.datasets]
        whole = combine(only)
        examples = Examples.of(
            whole,
            split,
            self.seed,
            negatives,
            sources=config.positives,
            ranked=config.positives_order == "ranked",
            fractions=parse_mix(config.negatives_mix),
        )
        order = arrange(
            examples,
            self.batch_size,
            self.seed,
            weights=config.dataset_weights,
            mixing=config.mixing,
            no_duplicates=not config.duplicates,
        )
        if self.teacher is not None:
            Coverage.of(self.teacher, examples).check(config.teacher)
        return self._source(whole, examples, order, self.labels, self.teacher)

    @cached_property
    def combined(self) -> RetrievalDataset:
        """All data sets as one. Tables of hard negatives and teacher scores use positions in this data set."""
        return combine(self.datasets)

    @cached_property
    def teacher(self) -> TeacherTable | None:
        """Teacher scores of all data sets; None without a teacher.

        Raises `DataError`, `StorageError` or `ConfigError` if they cannot be read."""
        names = self.config.teachers
        if not names:
            return None
        names += ("",) * (len(self.datasets) - len(names))
        tables = [
            read_scores(name, dataset) if name else TeacherTable.none(dataset)
            for name, dataset in zip(names, self.datasets, strict=True)
        ]
        return TeacherTable.chained(tables, *starts_of(self.combined))

    @cached_property
    def labels(self) -> TeacherTable | None:
        """Graded relevance of all data sets; None if no data set has graded relevance."""
        tables = [TeacherTable.of_grades(dataset, self.config.train_split) for dataset in self.datasets]
        return TeacherTable.chained(tables, *starts_of(self.combined)) if any(map(len, tables)) else None

    def dev(self) -> Batches:
        """Return the batches of the dev loss: the groups of the first data set's dev split."""
        dataset = self.datasets[0]
        examples = Examples.of(dataset, self.config.dev_split, self.seed)
        labels = TeacherTable.of_grades(dataset, self.config.dev_split)
        order = Order(len(examples), self.batch_size, self.seed)
        return self._source(dataset, examples, order, labels if len(labels) else None)

    def digest(self, negatives: NegativesTable | None) -> str:
        """Return the SHA-256 of everything that batches are made of: data sets, negatives, teacher scores."""
        parts = [dataset.digest for dataset in self.datasets]
        parts += [negatives.digest] if negatives is not None else []
        parts += [self.teacher.digest] if self.teacher is not None else []
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _source(
        self,
        dataset: RetrievalDataset,
        examples: Examples,
        order: Order,
        labels: TeacherTable | None,
        teacher: TeacherTable | None = None,
    ) -> Batches:
        if dataset.tokens is None:
            raise DataError("has no tokens", dataset.name, f"prepare it again with {setting('model')}")
        return Batches(
            dataset.tokens,
            examples,
            order,
            self.config.positives_per_query,
            self.config.negatives_per_query,
            teacher=teacher,
            labels=labels,
            guide=GuideTexts(self.guide.retriever, dataset) if self.guide is not None else None,
        )
