"""Annotation job: find candidates, estimate the cost, ask the model, write the data set, summarize."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, DataError, StorageError, UserError, setting
from raytriever.core.progress import Progress
from raytriever.core.store.cache import cache_folder
from raytriever.core.store.disk import check_writable
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.annotation.annotated_dataset import write_annotated
from raytriever.evaluation.annotation.annotation_candidates import choose_queries, find_candidates, open_checked
from raytriever.evaluation.annotation.annotation_settings import AnnotationConfig, LlmConfig
from raytriever.evaluation.annotation.annotator import Annotation, AnnotationQuery, Annotator, Counts, check_failures
from raytriever.evaluation.annotation.answer_log import AnswerLog, read_costs
from raytriever.evaluation.annotation.chat_completions import Service
from raytriever.evaluation.annotation.cost_estimate import estimate
from raytriever.evaluation.annotation.llm_prompts import AnnotationPrompts, load_prompts
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.external_encoders.endpoint_settings import check_service, read_service_key
from raytriever.retrieval.external_encoders.service_budget import BudgetReached, Spending, TokenCounts


@dataclass(kw_only=True)
class OpenedJob:
    """Annotation job whose inputs are open and checked.

    `queries` has the positions of the queries in the order of annotation, and `candidates` has, for each
    query, the positions of its documents. `annotations` maps an index in `queries` to its annotation. If the data set
    lacks `split`, its queries without a judgement are annotated. `model` is the encoder of `dense`."""

    settings: AnnotationConfig
    service: LlmConfig
    model: ModelConfig
    split: str
    dataset: RetrievalDataset
    queries: list[int]
    candidates: list[list[int]]
    annotator: Annotator
    annotations: dict[int, Annotation] = field(default_factory=dict)

    def questions(self) -> Iterator[tuple[int, AnnotationQuery]]:
        """Yield each query with its index. To save memory, the texts of its candidates are read and cut only then."""
        longest, passages = self.settings.passage_characters, self.dataset.passages()
        for number, (query, documents) in enumerate(zip(self.queries, self.candidates, strict=True)):
            excerpts = [passages[document][:longest] for document in documents]
            yield number, AnnotationQuery(self.dataset.queries.texts[query], documents, excerpts)


async def annotate(work: OpenedJob, key: str | None, report: Callable[[str], None]) -> dict[str, int]:
    """Annotate all queries and store the results in `work.annotations`. Return the retries per kind of failure.

    Raise `UserError` if the service fails, the budget is used up, the log cannot be written, or too many queries fail.
    """
    config, settings, spending = work.service, work.settings, work.annotator.spending
    service = Service(config, settings.temperature, settings.max_tokens, key)
    annotator = work.annotator = replace(work.annotator, service=service, in_flight=config.in_flight, counts=Counts())
    counts = annotator.counts
    with Progress("annotation", len(work.queries), "question") as progress:

        def on_result(number: int, annotation: Annotation) -> None:
            work.annotations[number] = annotation
            notes = {"cost": spending.cost} if config.price_in or config.price_out else {}
            progress.advance(1, **notes, malformed=counts.malformed, retries=sum(service.retried.values()))
            if failure := check_failures(counts, len(work.annotations), settings.max_failed):
                raise failure

        async with service:
            ended = await annotator.run(work.questions(), on_result)
    if isinstance(ended, BudgetReached):
        raise _out_of_budget(work)
    if ended is not None:
        done = f"{len(work.annotations):,} of {len(work.queries):,} queries are annotated"
        report(f"{done}. Their answers are kept in {annotator.log.path}.")
        raise ended
    if failure := check_failures(counts, len(work.annotations), settings.max_failed, is_complete=True):
        raise failure
    return service.retried


def _out_of_budget(work: OpenedJob) -> UserError:
    first = next((number for number in range(len(work.queries)) if number not in work.annotations), len(work.queries))
    config, spent = work.service, work.annotator.spending.spent
    flag = setting("budget" if config.budget_tokens is None else "budget_tokens")
    allowed = config.budget if config.budget_tokens is None else config.budget_tokens
    used = f"{spent.cost(config):,.4g}" if config.budget_tokens is None else f"{spent.read + spent.written:,}"
    remedy = "raise the limit, and run the same command again; answers are kept"
    if first:
        remedy += f"; or write the finished queries at no cost: give {setting('max_queries')} {first}"
    done = f"{len(work.annotations):,} of {len(work.queries):,} queries"
    what = f"{used} of {allowed:,} are used after {done}, and the next request may need more than is left"
    return ConfigError(what, flag, remedy)


def write(work: OpenedJob, output: Path) -> dict[str, Any]:
    """Write the data set and return the metadata of its manifest. Raise `DataError` if no query has a positive."""
    settings, annotator = work.settings, work.annotator
    numbers = sorted(work.annotations, key=lambda number: work.queries[number])
    annotations = {work.queries[number]: work.annotations[number] for number in numbers}
    candidates: dict[int, Sequence[int]] = {work.queries[number]: work.candidates[number] for number in numbers}
    if not any(annotation.useful for annotation in annotations.values()):
        what = "the model found no positive for any query"
        raise DataError(what, work.dataset.name, f"check the prompts, {setting('llm')} and {setting('candidates')}")
    spent = annotator.spending.spent
    meta: dict[str, Any] = {
        "kind": "annotations",
        "dataset": work.dataset.name,
        "dataset_digest": work.dataset.digest,
        "split": work.split,
        "endpoint": work.service.base,
        "llm": work.service.llm,
        "prompts": annotator.prompts.digests,
        "settings": asdict(settings),
        "encoder": work.model.model if "dense" in settings.retrievers else None,
        "queries": len(annotations),
        "candidates": sum(map(len, candidates.values())),
        "relevant": sum(len(annotation.relevant) for annotation in annotations.values()),
        "without_candidates": sum(not documents for documents in candidates.values()),
        "without_positives": sum(not annotation.useful for annotation in annotations.values()),
        "failed": sum(bool(annotation.failed) for annotation in annotations.values()),
        "tokens_read": spent.read,
        "tokens_written": spent.written,
        "cost": spent.cost(work.service),
    }
    write_annotated(output, work.dataset, work.split, annotations, candidates, settings.agreed, meta)
    return meta


@dataclass(frozen=True)
class AnnotationResult:
    """Result of a job.

    `meta` is the metadata of the manifest. `human` is True if people judged at least one document of the split
    relevant. `retried` has the number of repeated requests by kind of failure."""

    meta: dict[str, Any]
    human: bool
    counts: Counts
    retried: dict[str, int]
    quarantined: str | None


def run_annotation(
    settings: AnnotationConfig,
    service: LlmConfig,
    model: ModelConfig,
    data: DataConfig,
    output: Path,
    report: Callable[[str], None],
    *,
    split: str,
    precision: str | None = None,
    embeddings: Path | None = None,
    answers: Path | None = None,
    dry_run: bool = False,
    wait: bool = False,
) -> tuple[str, AnnotationResult | None]:
    """Annotate and write the data set to `output`. Return the estimate and the result; a dry run has no result.

    After an error, answers are kept, and the same command continues.

    Args:
        split: Split to annotate. If it does not exist, the queries without a judgement are annotated.
        model, precision: Encoder of `dense`, and its precision.
        embeddings: Embedding store of the passages, written with `model`.
        answers: Folder of the answer log. None means a folder in the cache.
        wait: Wait for another job that has locked the answer log.
    """
    if not dry_run:
        check_service(service)
    if not service.llm.strip():
        raise ConfigError("is missing", setting("llm"), "give the name of the model at the service")
    if output.exists():
        raise StorageError("exists already", str(output), f"give another {setting('output')}, or remove this one")
    check_writable(output)
    prompts = load_prompts(settings.prompts)
    key = None if dry_run else read_service_key(service, report)
    with closing(AnswerLog(answers or cache_folder() / "answers", wait, report)) as log:
        if log.damaged:
            report(f"{log.path}: {log.damaged:,} damaged answers are requested again")
        is_checked = not dry_run and not len(log)
        if is_checked:  # detect a wrong address or key before the slow steps
            asyncio.run(_check(settings, service, key))
        dataset = open_checked(data, report)
        queries = choose_queries(dataset, split, settings.max_queries)
        encoder = model, precision, embeddings
        candidates = find_candidates(dataset, queries, settings.retrievers, settings.depth, *encoder, report)
        name = job_name(settings, service.llm, model, data.bm25_language, split, dataset, prompts)
        annotator = _annotator(settings, service, prompts, log, name)
        work = OpenedJob(
            settings=settings,
            service=service,
            model=model,
            split=split,
            dataset=dataset,
            queries=queries,
            candidates=candidates,
            annotator=annotator,
        )
        expected = estimate(annotator, lambda: (question for _, question in work.questions()))
        table = expected.table(service, annotator.spending.estimator)
        if dry_run:
            return table, None
        report(table)
        # If the log has all answers, no service is needed.
        if not is_checked and expected.most.requests:
            asyncio.run(_check(settings, service, key))
        retried = asyncio.run(annotate(work, key, report))
        meta = write(work, output)
    bad = str(dataset.quarantine) if dataset.quarantine.total else None
    human = split in dataset.judgements and bool((dataset.judgements[split].scores > 0).any())
    return table, AnnotationResult(meta, human, work.annotator.counts, retried, bad)


def _annotator(
    settings: AnnotationConfig, service: LlmConfig, prompts: AnnotationPrompts, log: AnswerLog, job: str
) -> Annotator:
    """Return an annotator without a service. Its costs include those of earlier runs of the job."""
    paid, estimator = read_costs(log, service.llm)
    spending = Spending(service, paid.get(job, TokenCounts()), estimator)
    return Annotator(
        prompts=prompts, config=settings, llm=service.llm, job=job, log=log, service=None, spending=spending
    )


def job_name(
    settings: AnnotationConfig,
    llm: str,
    model: ModelConfig,
    bm25_language: str | None,
    split: str,
    dataset: RetrievalDataset,
    prompts: AnnotationPrompts,
) -> str:
    """Return a digest of all that a request depends on. Runs of the job with the same digest share a budget."""
    deciding = asdict(replace(settings, max_queries=None, prompts="", agreed="human", max_failed=0.0))
    parts = [dataset.documents.digest, dataset.queries.digest, split, llm, deciding, prompts.digests]
    if "dense" in settings.retrievers:
        parts.append(asdict(model))
    if bm25_language:
        parts.append(bm25_language)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


async def _check(settings: AnnotationConfig, config: LlmConfig, key: str | None) -> None:
    async with Service(config, settings.temperature, settings.max_tokens, key) as service:
        await service.check()


def summary(result: AnnotationResult, priced: bool) -> str:
    """Format the result: counts from candidates to positives, the first failure of each kind, and the cost."""
    meta, counts = result.meta, result.counts
    queries = meta["queries"]
    rows = {
        "candidates": meta["candidates"],
        "relevant to the query": meta["relevant"],
        "useful for the answer": meta["positives"] + meta["judged_irrelevant"],
    }
    lines = [f"{'':<34}{'in all':>12}{'a query':>10}"]
    lines += [f"{name:<34}{count:>12,}{count / queries:>10.1f}" for name, count in rows.items()]
    lines += ["", f"{queries:,} queries; for {meta['without_positives']:,} the model found no positive"]
    lines[-1] += f", {meta['without_candidates']:,} had no candidate, {meta['failed']:,} failed"
    new = meta["positives"] - meta["agreed"]
    lines.append(f"positives written: {new:,} new, {meta['agreed']:,} that people also judged relevant")
    if meta["judged_irrelevant"]:
        lines.append(f"left out: {meta['judged_irrelevant']:,}, because people judged them 0")
    if counts.malformed:
        lines.append(f"{counts.malformed:,} malformed answers; the first is {counts.first_malformed}")
    if counts.failed:
        lines.append(f"the first failure: {counts.first_failed}")
    if result.retried:
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in sorted(result.retried.items()))
        lines.append(f"{sum(result.retried.values()):,} repeated requests: {kinds}")
    lines.append(f"{counts.asked:,} answers paid in this run, {counts.from_log:,} answers from the log")
    cost = f", cost {meta['cost']:,.4g}" if priced else ""
    guessed = f" (the tokens of {counts.uncounted:,} answers are estimated)" if counts.uncounted else ""
    lines.append(f"{meta['tokens_read']:,} tokens read, {meta['tokens_written']:,} written{cost}, in all runs{guessed}")
    if result.quarantined:
        lines.append(result.quarantined)
    return "\n".join(lines)
