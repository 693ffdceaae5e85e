"""Annotation as a job: check and open everything, find candidates, estimate, ask, write the data set."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from raytriever.annotation.annotate import Annotator
from raytriever.annotation.annotated import Annotated
from raytriever.annotation.answer_log import AnswerLog
from raytriever.annotation.candidates import find_candidates
from raytriever.annotation.config import check_annotation, check_service
from raytriever.annotation.estimate import estimate
from raytriever.annotation.opening import choose_queries, key_of_service, open_whole, paid_before
from raytriever.annotation.prompts import Prompts, load_prompts
from raytriever.annotation.service import Service
from raytriever.annotation.spending import Gauge, Spending, Tokens
from raytriever.annotation.work import AnnotationJob, Work, ask, write
from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import ConfigError, DataError, StorageError
from raytriever.storage import cache_folder, check_writable


def run_annotation(
    job: AnnotationJob, output: Path, dry_run: bool, say: Callable[[str], None], wait: bool = False
) -> tuple[str, Annotated | None]:
    """Annotate, and commit the data set to `output`; a dry run ends with the estimate. `wait` is for
    another job that holds the answers.

    Returns:
        The estimate, and what came of it.

    Raises:
        UserError: something a user can mend. Nothing is written then but answers, which the same command goes on from.
    """
    check_annotation(job.annotation, job.embeddings is not None)
    if not dry_run:
        check_service(job.service)
    if not job.service.llm.strip():
        raise ConfigError("is missing", "--llm", "give the model's name as the service knows it")
    if output.exists():
        raise StorageError("is there already", str(output), "give another --output, or remove it")
    check_writable(output)
    prompts = load_prompts(job.annotation.prompts)
    key = None if dry_run else key_of_service(job.service, say)
    log = AnswerLog(job.answers or cache_folder() / "answers", wait, say)
    try:
        if log.damaged:
            say(f"{log.path}: {log.damaged:,} damaged answers are asked for again")
        paid, gauge = paid_before(log, job.service.llm)
        known = gauge.read_tokens > 0
        if not dry_run and not known:
            asyncio.run(_check(job, key))
        dataset = open_whole(job.dataset, job.max_bad_rows, say)
        work = _prepare(job, dataset, prompts, log, paid, gauge, say)
        expected = asyncio.run(estimate(work.annotator, (question for _, question in work.questions())))
        table = expected.table(job.service, gauge)
        if dry_run:
            return table, None
        say(table)
        if known and expected.most.requests:
            asyncio.run(_check(job, key))
        retried = asyncio.run(ask(work, key, say))
        told = write(work, output)
    finally:
        log.close()
    bad = str(dataset.quarantine) if dataset.quarantine.total else None
    human = job.split in dataset.judgements and bool((dataset.judgements[job.split].scores > 0).any())
    return table, Annotated(told, human, work.annotator.counts, retried, bad)


def _prepare(
    job: AnnotationJob,
    dataset: RetrievalDataset,
    prompts: Prompts,
    log: AnswerLog,
    paid: Mapping[str, Tokens],
    gauge: Gauge,
    say: Callable[[str], None],
) -> Work:
    """Find the candidates, and what was paid before; the annotator asks nothing yet."""
    settings = job.annotation
    queries = choose_queries(dataset, job.split, settings.max_queries)
    who = settings.retrievers
    model = job.model, job.precision, job.embeddings
    candidates = find_candidates(dataset, queries, who, settings.depth, *model, say)
    if not any(candidates):
        raise DataError(f"nobody found a passage for any of {len(queries):,} queries", dataset.name, "add --candidates")
    name = job_name(job, dataset, prompts)
    spending = Spending(job.service, paid.get(name, Tokens()), gauge)
    silent = Annotator(prompts, settings, job.service.llm, name, log, None, spending)
    return Work(job, dataset, queries, candidates, silent)


def job_name(job: AnnotationJob, dataset: RetrievalDataset, prompts: Prompts) -> str:
    """A digest of everything that decides what is asked but for how many queries: runs of one name share a budget."""
    settings = asdict(replace(job.annotation, max_queries=None, prompts="", agreed="human", max_failed=0.0))
    parts = [dataset.documents.digest, dataset.queries.digest, job.split, job.service.llm, settings]
    parts.append(prompts.digests)
    if "dense" in job.annotation.retrievers:
        parts.append(asdict(job.model))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


async def _check(job: AnnotationJob, key: str | None) -> None:
    """Before anything long is done; where answers are known, only if some are missing: the service may be gone."""
    async with Service(job.service, job.annotation.temperature, job.annotation.max_tokens, key) as service:
        await service.check()
