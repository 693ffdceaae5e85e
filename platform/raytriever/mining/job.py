"""Mining job: open and check all inputs, encode if a method needs embeddings, mine, and write the table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.keys import key_of
from raytriever.data.negatives import ROW_BYTES, write_negatives
from raytriever.data.prepare.open import open_all_splits
from raytriever.data.prepare.pipeline import in_processes
from raytriever.encoding.corpus import embed_corpus, open_matching_store
from raytriever.encoding.encode import encode_queries
from raytriever.encoding.loading import load_for_encoding, report_prompts
from raytriever.encoding.store import EmbeddingStore
from raytriever.errors import ConfigError, DataError, StorageError, setting
from raytriever.mining.analyser import Analysis
from raytriever.mining.config import MiningConfig
from raytriever.mining.filters import REASONS
from raytriever.mining.finders import Embeddings
from raytriever.mining.miner import REPEATED, MiningResult, check_data, mine
from raytriever.models.config import ModelConfig
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.precision import choose_precision, default_device
from raytriever.store.cache import cache_folder, hold, keep_within_bound
from raytriever.store.capacity import check_disk
from raytriever.store.commit import remove
from raytriever.store.disk import check_writable
from raytriever.terminal import text_table


@dataclass(frozen=True, kw_only=True)
class MiningJob:
    """Inputs and settings of a mining job.

    Args:
        dataset: path, URI or name.
        split: split whose queries get negatives.
        model: encoder, used if a method needs embeddings.
        precision: arithmetic of the encoder; None for the fastest on this hardware.
        max_bad_rows: largest share of bad rows in each file, 0 to 1.
        seed, round: decide the random draws; the round is stored in the table.
        embeddings: store of the passage embeddings, written by `model` for this data set; by default the cache.
        bm25_language: language of BM25's analyser; None to detect it.
    """

    dataset: str
    split: str
    mining: MiningConfig
    model: ModelConfig
    precision: str | None
    max_bad_rows: float
    seed: int
    round: int
    embeddings: Path | None = None
    bm25_language: str | None = None


def run_mining(job: MiningJob, output: Path, report: Callable[[str], None]) -> tuple[MiningResult, str | None]:
    """Mine, and commit the table to `output`, which does not exist yet; `check_mining` has checked the settings.

    Returns:
        The result, and a line about quarantined rows if there are any.

    Raises:
        UserError: an error that the user can correct; nothing is written.
    """
    if job.embeddings and not job.mining.needs_embeddings:
        reason = f"{setting('method')} {job.mining.method} needs no embeddings"
        raise ConfigError(reason, setting("embeddings"), f"add dense or cross-query to {setting('method')}")
    if output.exists():
        raise StorageError("already exists", str(output), f"give another {setting('output')}, or remove it")
    check_writable(output)
    device = default_device()
    precision = choose_precision(job.precision, device)
    judge = None
    if job.mining.judge:  # no cross-encoder has int8
        judge = CrossEncoder(job.mining.judge, device, "fp32" if precision == "int8" else precision)
    dataset = open_all_splits(
        job.dataset,
        [job.split],
        max_bad_rows=job.max_bad_rows,
        bm25_language=job.bm25_language,
        run=in_processes,
        report=report,
    )
    check_data(dataset, job.split, job.mining)
    if "bm25" in job.mining.methods:
        for line in Analysis.of(dataset.documents).notes:
            report(line)
    rows = len(dataset.positives(job.split).queries) * job.mining.num_negatives * len(job.mining.methods)
    check_disk(output, rows * ROW_BYTES, "the negatives")
    embeddings = documents = None
    if job.mining.needs_embeddings:
        retriever = load_for_encoding(job.model, precision, device)
        report_prompts(retriever, dataset.name, report)
        documents = open_matching_store(job.embeddings, job.model, retriever, dataset) if job.embeddings else None
        what = "queries" if documents else "queries and passages"
        report(f"{job.model.model}: {retriever.summary()}")
        report(f"{dataset.name}: encoding {what} with {job.model.model} ({precision} on {device})")
        queries = dataset.positives(job.split).queries
        documents = documents or embed_corpus(job.model, retriever, dataset)
        embeddings = Embeddings(encode_queries(retriever, dataset, queries), documents)
    finished = _folder_of_blocks(job, dataset, embeddings, documents, judge)
    mined = mine(
        dataset,
        job.split,
        job.mining,
        embeddings=embeddings,
        judge=judge,
        seed=job.seed,
        round=job.round,
        finished=finished,
    )
    if not len(mined.table):
        raise DataError(f"no negative is left; {_summary(mined)}", dataset.name, "loosen the filters that removed them")
    meta = {
        "kind": "negatives",
        "split": job.split,
        "settings": asdict(job.mining),
        "model": job.model.model if embeddings else None,
        "model_digest": documents.meta["model_digest"] if documents else None,
        "seed": job.seed,
        "round": job.round,
        **mined.meta(),
    }
    write_negatives(output, mined.table, dataset, meta)
    remove(finished)
    return mined, str(dataset.quarantine) if dataset.quarantine.total else None


def _folder_of_blocks(
    job: MiningJob,
    dataset: RetrievalDataset,
    embeddings: Embeddings | None,
    documents: EmbeddingStore | None,
    judge: CrossEncoder | None,
) -> Path:
    """Make the folder of the finished blocks in the cache, named after all that decides the table."""
    rows = hashlib.sha256()
    for column in vars(dataset.negatives).values() if dataset.negatives else ():
        rows.update(np.ascontiguousarray(column).data)
    if dataset.answers:
        rows.update(np.ascontiguousarray(dataset.answers.queries).data)
        for text in dataset.answers.texts:
            rows.update(key_of(str(text)))
    decides = [
        dataset.digest,
        rows.hexdigest(),
        Analysis.of(dataset.documents).analyser.settings,
        job.split,
        asdict(job.mining),
        job.seed,
        job.round,
        documents.meta["key"] if documents else None,
        hashlib.sha256(np.ascontiguousarray(embeddings.queries).data).hexdigest() if embeddings else None,
        judge.digest() if judge else None,
    ]
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / "negatives" / f"{key[:16]}-blocks"
    with suppress(OSError, StorageError):  # a cache that only others may write: nothing is kept
        folder.mkdir(parents=True, exist_ok=True)
        hold(folder, dataset)
        keep_within_bound(folder)
    return folder


def format_counts(mined: MiningResult) -> str:
    """Format the counts of candidates, of those removed for each reason and of kept ones: one column per method."""
    reasons = {name for counts in mined.counts.values() for name in counts}
    rows = ["candidates", *(name for name in (*REASONS[1:], REPEATED) if name in reasons), "kept"]
    cells = [[name, *(f"{counts.get(name, 0):,}" for counts in mined.counts.values())] for name in rows]
    return text_table([["", *mined.counts], *cells], left=0)


def _summary(mined: MiningResult) -> str:
    """Format the counts in one line."""
    return "; ".join(
        f"{method}: {', '.join(f'{name} {count:,}' for name, count in counts.items())}"
        for method, counts in mined.counts.items()
    )
