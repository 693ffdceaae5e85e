"""A job with everything opened: its questions, the asking with progress, what stops it, and what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from raytriever.annotation.annotate import Annotation, Annotator, Question, check_failures
from raytriever.annotation.config import AnnotationConfig, ServiceConfig
from raytriever.annotation.output import write_annotated
from raytriever.annotation.service import Service
from raytriever.annotation.spending import BudgetReached
from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import ConfigError, DataError, UserError
from raytriever.models.config import ModelConfig
from raytriever.tracking.progress import Progress


@dataclass(frozen=True)
class AnnotationJob:
    """What is annotated, by whom, and where the answers are kept.

    Args:
        dataset: path, URI or name.
        split: whose queries; one that the data set does not have is made of the queries that no split judges.
        annotation, service: the settings.
        model, precision: the encoder of `dense`, and its arithmetic.
        max_bad_rows: the share of each file's rows that may be bad.
        embeddings: of the passages, a store that `model` made.
        answers: the folder of the log; a folder of the cache where None.
    """

    dataset: str
    split: str
    annotation: AnnotationConfig
    service: ServiceConfig
    model: ModelConfig
    precision: str | None
    max_bad_rows: float
    embeddings: Path | None = None
    answers: Path | None = None


@dataclass
class Work:
    """A job with everything opened.

    Args:
        queries: positions, in the order in which they are annotated.
        candidates: of each, documents by position.
        annotator: asks nothing until `ask` replaces it by one that does.
        found: what came of each, by its place in `queries`.
    """

    job: AnnotationJob
    dataset: RetrievalDataset
    queries: list[int]
    candidates: list[list[int]]
    annotator: Annotator
    found: dict[int, Annotation] = field(default_factory=dict)

    def questions(self) -> Iterator[tuple[int, Question]]:
        """All of them, made as they are wanted."""
        longest, passages = self.job.annotation.passage_characters, self.dataset.passages()
        for number, (query, documents) in enumerate(zip(self.queries, self.candidates, strict=True)):
            shown = [passages[document][:longest] for document in documents]
            yield number, Question(self.dataset.queries.texts[query], documents, shown)


async def ask(work: Work, key: str | None, say: Callable[[str], None]) -> dict[str, int]:
    """Annotate all queries; what is found is in `work.found`.

    Returns:
        Requests sent again, by what failed.

    Raises:
        UserError: the service fails, the budget is used up, the log cannot be written, too many queries failed.
    """
    job, silent = work.job, work.annotator
    settings = job.annotation
    service = Service(job.service, settings.temperature, settings.max_tokens, key)
    spending = silent.spending
    asking = Annotator(
        silent.prompts, settings, silent.llm, silent.job, silent.log, service, spending, job.service.in_flight
    )
    work.annotator = asking
    counts = asking.counts
    with Progress("annotation", len(work.queries), "question") as progress:

        def told(number: int, annotation: Annotation) -> None:
            work.found[number] = annotation
            notes = {"cost": spending.cost} if job.service.price_in or job.service.price_out else {}
            progress.advance(1, **notes, malformed=counts.malformed, retries=sum(service.retried.values()))
            if hopeless := check_failures(counts, len(work.found), settings.max_failed):
                raise hopeless

        async with service:
            ended = await asking.run(work.questions(), told)
    if isinstance(ended, BudgetReached):
        raise _out_of_budget(work)
    if ended is not None:
        say(
            f"{len(work.found):,} of {len(work.queries):,} queries are annotated; answers are kept in {asking.log.path}"
        )
        raise ended
    if hopeless := check_failures(counts, len(work.found), settings.max_failed, whole=True):
        raise hopeless
    return service.retried


def _out_of_budget(work: Work) -> UserError:
    first = next((number for number in range(len(work.queries)) if number not in work.found), len(work.queries))
    config, spent = work.job.service, work.annotator.spending.spent
    flag = "--budget-tokens" if config.budget_tokens is not None else "--budget"
    remedy = "raise it to go on; answers are kept"
    if first:
        remedy += f"; with --max-queries {first} what is there is written, at no cost"
    return ConfigError(
        f"is used up after {len(work.found):,} of {len(work.queries):,} queries "
        f"({spent.read:,} tokens read, {spent.written:,} written, cost {spent.cost(config):,.4g})",
        flag,
        remedy,
    )


def write(work: Work, output: Path) -> dict[str, Any]:
    """Commit the data set; answers the meta of its manifest. Raises `DataError` where there is no positive at all."""
    job, annotator = work.job, work.annotator
    numbers = sorted(work.found, key=lambda number: work.queries[number])
    annotations = {work.queries[number]: work.found[number] for number in numbers}
    candidates: dict[int, Sequence[int]] = {work.queries[number]: work.candidates[number] for number in numbers}
    if not any(found.useful for found in annotations.values()):
        raise DataError(
            "the model found no positive for any query",
            work.dataset.name,
            "look at the prompts, --llm and --candidates",
        )
    spent = annotator.spending.spent
    meta: dict[str, Any] = {
        "kind": "annotations",
        "dataset": work.dataset.name,
        "dataset_digest": work.dataset.digest,
        "split": job.split,
        "endpoint": job.service.base,
        "llm": job.service.llm,
        "prompts": annotator.prompts.digests,
        "settings": asdict(job.annotation),
        "encoder": job.model.model if "dense" in job.annotation.retrievers else None,
        "queries": len(annotations),
        "candidates": sum(map(len, candidates.values())),
        "relevant": sum(len(found.relevant) for found in annotations.values()),
        "without_candidates": sum(not each for each in candidates.values()),
        "without_positives": sum(not found.useful for found in annotations.values()),
        "failed": sum(bool(found.failed) for found in annotations.values()),
        "tokens_read": spent.read,
        "tokens_written": spent.written,
        "cost": spent.cost(job.service),
    }
    write_annotated(output, work.dataset, job.split, annotations, candidates, job.annotation.agreed, meta)
    return meta
