"""Request of an evaluation: models, checked data sets, baselines and protocol.

A data set may mark questions that its corpus does not answer (kind `given`). `--unanswerable removed PATH` adds more:

- `removed`: half of the questions (a fifth with `removed=0.2`) lose their answers: their relevant documents, and the
  copies of these, are not searched. This needs no new text, so every threshold is also tested on all questions in
  this way.
- `foreign`: the questions of another data set, which no document of this corpus answers. A question is left out if this
  data set has it too, or if this corpus contains one of its relevant passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

from raytriever.core.errors import ConfigError, DataError, setting
from raytriever.core.store.object_stores import address_of
from raytriever.core.unknown_names import did_you_mean
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import in_processes
from raytriever.data.unanswerable_queries import with_questions
from raytriever.evaluation.evaluated_datasets import (
    EvaluationDataset,
    check_prompts,
    describe_datasets,
    distinct_names,
    find_beir,
    safe_name,
    unique_names,
)
from raytriever.evaluation.evaluation_settings import EvaluationConfig
from raytriever.evaluation.protocol import (
    FOREIGN,
    PAIR_TARGETS,
    JudgedQueries,
    Protocol,
    ThresholdTarget,
    asks_removed,
    check_answers,
    parse_targets,
    read_metrics,
    removed_fraction,
    select_judged_queries,
    target_text,
)
from raytriever.evaluation.system_names import (
    Reranking,
    SystemTree,
    check_questions,
    describe_system,
    encoders_of,
    has_weight,
    parse_system,
    paths_of,
    replace_nodes,
    short_text,
    split_label,
    system_text,
)
from raytriever.metrics.answer_confidence import ENTROPY
from raytriever.metrics.answer_threshold import check_enough
from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.models.directory.hub_or_local import check_revision
from raytriever.models.model_settings import ModelConfig
from raytriever.models.resolve_model import commit_of

# The default of sentence-transformers for the same setting.
RESCORE_MULTIPLIER = 2


@dataclass(frozen=True)
class QuantizedVariant:
    """Quantized or truncated variant of a model's embeddings, made from its fp32 embeddings."""

    model: str
    dtype: str  # type of the components, one of `evaluation_settings.DTYPES`
    dim: int | None  # number of leading components to keep; None for all
    rescore_multiplier: int  # number of candidates that the quantized embeddings find for each result

    @property
    def name(self) -> str:
        """Name of the variant in tables and files."""
        return "-".join([self.model, *([str(self.dim)] if self.dim else []), self.dtype])


@dataclass(frozen=True)
class EvaluatedModel:
    """System of an evaluation with its name in tables and files.

    `variant` is set if the system is a variant of an earlier model's embeddings."""

    name: str
    system: SystemTree
    variant: QuantizedVariant | None = None

    @property
    def config(self) -> ModelConfig | None:
        """Settings of an encoder; None for any other system."""
        return self.system if isinstance(self.system, ModelConfig) else None

    @property
    def location(self) -> str:
        """Name of the system, with absolute paths or addresses instead of relative paths."""
        return system_text(self.system, lambda path: address_of(path) or path)


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """Checked request of an evaluation."""

    models: Sequence[EvaluatedModel]
    datasets: Sequence[EvaluationDataset]
    baselines: Sequence[str]  # names of the models that the others are compared with
    targets: Sequence[ThresholdTarget] = ()  # targets for which thresholds are chosen on `calibration_split`
    # Split on which thresholds are chosen. If it is the evaluated split, they are tested on the same queries.
    calibration_split: str = "dev"
    calibrated: Sequence[str] = ()  # names of the models for which thresholds are chosen; empty for all
    confidence: str = ENTROPY  # the measure that decides whether a query is answered, one of `CONFIDENCES`
    removed: float = 0.0  # fraction of the questions whose answers are removed from the corpus
    foreign: Sequence[str] = ()  # other data sets, whose questions this corpus does not answer
    precision: str | None = None  # precision of encoding, `fp32` or `bf16`; None for the default of the device
    missing: Sequence[str] = field(default_factory=tuple)  # a line for each missing data set of a suite

    @property
    def variants(self) -> list[QuantizedVariant]:
        """The requested variants of embeddings."""
        return [model.variant for model in self.models if model.variant]

    def content(self) -> dict[str, Any]:
        """Return everything that decides the results, for `results.json`. `precision` must be the precision in use."""
        return {
            "models": {model.name: describe_system(model.system) for model in self.models if not model.variant},
            "data sets": {
                dataset.name: {
                    "split": dataset.split,
                    "parts": dataset.parts,
                    **asdict(dataset.protocol),
                    **({"bm25_language": dataset.bm25_language} if dataset.bm25_language else {}),
                }
                for dataset in self.datasets
            },
            "baselines": list(self.baselines),
            "calibrate": [target_text(*target).replace(" ", "=") for target in self.targets],
            "calibration_split": self.calibration_split if self.targets or self.chooses_weights else None,
            **({"calibrated": list(self.calibrated)} if self.calibrated else {}),
            "confidence": self.confidence if self.targets else None,
            **({"removed": self.removed} if self.removed else {}),
            **({"foreign": list(self.foreign)} if self.foreign else {}),
            "precision": self.precision,
            **({"variants": {variant.name: asdict(variant) for variant in self.variants}} if self.variants else {}),
        }

    def splits(self, data: EvaluationDataset) -> list[str]:
        """Return the splits of a data set that the evaluation needs."""
        wants_pairs = any(target in PAIR_TARGETS for target, _ in self.targets)
        if data.split == self.calibration_split and (wants_pairs or self.chooses_weights):
            what, chosen = f"{data.name} is already evaluated on {data.split!r}", "thresholds of pairs" * wants_pairs
            remedy = f"choose {chosen or 'weights of a fusion'} on another split"
            raise ConfigError(what, setting("calibration_split"), remedy)
        chosen_on = [self.calibration_split] if self.targets or self.chooses_weights else []
        return list(dict.fromkeys([data.split, *chosen_on]))

    @property
    def chooses_weights(self) -> bool:
        """True if there is a weighted fusion. Its weight is chosen on `calibration_split`."""
        return any(has_weight(model.system) for model in self.models)


@dataclass(frozen=True)
class OpenPart:
    """Opened part of a data set. `judged` holds the judged queries of each split that the evaluation needs."""

    name: str
    dataset: RetrievalDataset
    judged: dict[str, JudgedQueries]


def read_models(words: Sequence[str], settings: ModelConfig) -> list[EvaluatedModel]:
    """Parse the systems that a user named; see `evaluation.system_names`. `settings` apply to all encoders."""
    return name_models([(label, parse_system(name, settings)) for label, name in map(split_label, words)])


def name_models(models: Sequence[tuple[str | None, SystemTree]]) -> list[EvaluatedModel]:
    """Name the systems for tables and files. A system with an explicit name keeps this name."""
    labels = [safe_name(label) if label else None for label, _ in models]
    sources = [system_text(tree) for _, tree in models]
    paths = list(dict.fromkeys(path for _, tree in models for path in paths_of(tree)))
    short = dict(zip(paths, distinct_names(paths), strict=True))
    shorts = [safe_name(short_text(tree, short.__getitem__)) for _, tree in models]
    names = [label or name for label, name in zip(labels, shorts, strict=True)]
    for other, row in combinations(range(len(names)), 2):
        if names[row] == names[other] and (labels[row] or labels[other] or sources[row] == sources[other]):
            remedy = f"give one of them a new name: NAME={sources[row]}"
            raise ConfigError(f"two models are called {names[row]!r}", setting("model"), remedy)
    return [EvaluatedModel(name, tree) for name, (_, tree) in zip(unique_names(names), models, strict=True)]


def add_variants(models: Sequence[EvaluatedModel], config: EvaluationConfig) -> list[EvaluatedModel]:
    """Return the models, each followed by its variants: every type at every dimension."""
    if not config.dtypes:
        return list(models)
    if all(model.config is None for model in models):
        flag = setting("dtype" if config.dtype else "truncate_dim")
        remedy = f"leave it out, or give a dense model with {setting('model')}"
        raise ConfigError(f"{models[0].name} has no embeddings", flag, remedy)
    multiplier = config.rescore_multiplier or RESCORE_MULTIPLIER
    all_models: list[EvaluatedModel] = []
    for model in models:
        all_models.append(model)
        for dim, dtype in product(config.dims or (None,), config.dtypes) if model.config else ():
            if (dim, dtype) != (None, "fp32"):  # this would be the model itself
                variant = QuantizedVariant(model.name, dtype, dim, multiplier)
                all_models.append(EvaluatedModel(variant.name, model.system, variant))
    names = [model.name for model in all_models]
    if name := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two models are called {name!r}", setting("model"), "rename one of them: NAME=MODEL")
    return all_models


def pin_models(models: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """Pin hub models to their current commits, so that results name exactly what was evaluated."""
    if configs := [config for model in models for config in encoders_of(model.system)]:
        check_revision([config.model for config in configs], configs[0].revision)

    def pin(node: SystemTree) -> SystemTree:
        if isinstance(node, Reranking):
            return replace(node, revision=commit_of(node.cross_encoder))
        return replace(node, revision=commit_of(node.model, node.revision)) if isinstance(node, ModelConfig) else node

    return [replace(model, system=replace_nodes(model.system, pin)) for model in models]


def choose_baselines(words: Sequence[str], models: Sequence[EvaluatedModel]) -> list[str]:
    """Return the names of the baselines. By default the first model is the baseline."""
    names = [model.name for model in models]
    by_source = {system_text(model.system): model.name for model in models if not model.variant}
    if not words:
        return names[:1]
    for word in words:
        if word not in names and word not in by_source:
            raise ConfigError(f"{word!r} is not one of the models", setting("baseline"), did_you_mean(word, names))
    baselines = [word if word in names else by_source[word] for word in words]
    if len(baselines) > 2 or len(set(baselines)) < len(baselines):
        raise ConfigError(f"got {' '.join(words)}", setting("baseline"), "give one model, or two different models")
    return baselines


def open_parts(evaluated: EvaluationDataset, splits: Sequence[str]) -> list[OpenPart]:
    """Open the parts of a data set and select the judged queries of each split."""
    parts = []
    for name, source in evaluated.parts.items():
        dataset = open_dataset(
            source, splits, max_bad_rows=evaluated.max_bad_rows, bm25_language=evaluated.bm25_language, run=in_processes
        )
        judged = {split: select_judged_queries(dataset, split, evaluated.protocol) for split in splits}
        if evaluated.protocol.wants_answers:
            check_answers(dataset, evaluated.split, judged[evaluated.split].queries)
        parts.append(OpenPart(name, dataset, judged))
    return parts


def build_evaluation_job(
    models: Sequence[EvaluatedModel],
    datasets: Sequence[str],
    config: EvaluationConfig,
    baselines: Sequence[str],
    targets: Sequence[str],
    unanswerable: Sequence[str],
    precision: str | None,
    max_bad_rows: float,
    log: Callable[[str], None],
    bm25_language: str | None = None,
) -> EvaluationJob:
    """Build the request that the settings describe, with hub models pinned to commits.

    `log` is called with a line for each missing data set of the suite."""
    if not datasets and not config.suite:
        raise ConfigError(
            f"{setting('datasets')} is missing", remedy=f"give {setting('datasets')} PATH, or {setting('suite')} beir"
        )
    foreign = [word for word in unanswerable if not asks_removed(word)]
    check_questions([model.system for model in models], foreign)
    models = add_variants(pin_models(models), config)
    protocol = Protocol(read_metrics(config.metrics), level=config.relevance_level, drop_own=config.drop_own_id)
    describe = partial(describe_datasets, protocol=protocol, max_bad_rows=max_bad_rows, bm25_language=bm25_language)
    job = EvaluationJob(
        models=models,
        datasets=describe(datasets, config.split),
        baselines=choose_baselines(baselines, models),
        targets=parse_targets(targets),
        calibration_split=config.calibration_split,
        confidence=config.confidence,
        removed=removed_fraction(unanswerable),
        foreign=foreign,
        precision=precision,
    )
    if config.suite:
        root = Path(config.data_root) if config.data_root else None
        suite, missing = find_beir(root, describe, lambda dataset: open_parts(dataset, job.splits(dataset)))
        for line in missing:
            log(f"MISSING: {line}")
        if not suite:
            where = setting("data_root", root) if root else setting("suite", "beir")
            remedy = f"give {setting('data_root')}, the folder that holds the data sets"
            raise DataError("no data set of the suite exists", where, remedy)
        job = replace(job, datasets=[*job.datasets, *suite], missing=missing)
    for encoder in (encoder for model in models for encoder in encoders_of(model.system)):
        if encoder.dataset_prompts:
            check_prompts(encoder.dataset_prompts, job.datasets)
    return job


def add_foreign_questions(
    part: OpenPart,
    foreign: Sequence[str],
    max_bad_rows: float,
    log: Callable[[str], None],
    split_elsewhere: str | None = None,
) -> OpenPart:
    """Add the questions of other data sets to each split of a part.

    Args:
        max_bad_rows: accepted fraction of bad rows of the other data sets, 0 to 1.
        log: function that gets a line about questions that are left out.
        split_elsewhere: split of the other data sets; None for the split with the same name.
    """
    dataset, judged = part.dataset, dict(part.judged)
    for split in judged:
        made = dict(judged[split].unanswerable)
        for number, path in enumerate(foreign):
            texts = foreign_questions(path, split_elsewhere or split, max_bad_rows, part.dataset, log)
            first = len(dataset.queries)
            dataset = with_questions(dataset, split, texts, f"{FOREIGN}-{split}-{number}")
            added = np.arange(first, first + len(texts))
            made[FOREIGN] = np.concatenate([made[FOREIGN], added]) if FOREIGN in made else added
        judged[split] = replace(judged[split], unanswerable=made)
    # All splits share the extended list of questions. New questions are at its end, so old positions stay valid.
    return OpenPart(part.name, dataset, {split: replace(chosen, dataset=dataset) for split, chosen in judged.items()})


def foreign_questions(
    path: str, split: str, max_bad_rows: float, dataset: RetrievalDataset, log: Callable[[str], None]
) -> list[str]:
    """Return the questions of a split of another data set, without those that this data set has or answers."""
    other = open_dataset(path, [split], max_bad_rows=max_bad_rows, run=in_processes)
    asked = [*other.relevant_queries(split).tolist(), *other.unanswerable.get(split, np.array([], int)).tolist()]
    judged = other.judgements[split]
    is_here = (judged.scores > 0) & np.isin(other.documents.hashes[judged.documents], dataset.documents.hashes)
    answered = set(judged.queries[is_here].tolist())
    known = set(dataset.queries.hashes.tolist())
    hashes = other.queries.hashes[asked].tolist()
    kept = [query for query, key in zip(asked, hashes, strict=True) if key not in known and query not in answered]
    if len(kept) < len(asked):
        log(
            f"{other.name}: {len(asked) - len(kept):,} of {len(asked):,} questions are left out: {dataset.name} has "
            "the question, or a passage relevant to it"
        )
    if not kept:
        what = f"has only questions that {dataset.name} has or answers too" if asked else "has no question"
        raise DataError(what, f"{other.name}, split {split!r}", f"leave it out of {setting('unanswerable')}")
    return [str(other.queries.texts[query]) for query in kept]


def check_enough_questions(parts: Sequence[OpenPart], source: EvaluationDataset, job: EvaluationJob) -> None:
    """Raise `DataError`, before any text is encoded, if a data set has too few questions to choose a threshold."""
    if all(target in PAIR_TARGETS for target, _ in job.targets):
        return
    judged = [split for part in parts for split in part.judged.values()]
    try:
        check_enough(sum(len(s.queries) + sum(map(len, s.unanswerable.values())) for s in judged), job.confidence)
    except MetricInputError as error:
        raise DataError(error.what, source.name, error.remedy) from error
