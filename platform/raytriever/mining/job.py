"""Mining as a job: open and check everything, encode where a method needs it, mine, write the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import write_negatives
from raytriever.data.prepare.open import fetched, open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.data.prepare.prepared import splits_of
from raytriever.encoding.corpus import embed_corpus, open_matching_store
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import ConfigError, DataError, StorageError
from raytriever.mining.analyser import Analysis
from raytriever.mining.config import BY_ENCODER, MiningConfig, check_mining
from raytriever.mining.filters import REASONS
from raytriever.mining.miner import REPEATED, MiningResult, check_data, mine
from raytriever.mining.scorers import Embeddings
from raytriever.models.config import ModelConfig
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.precision import choose_precision
from raytriever.storage import check_writable


@dataclass(frozen=True)
class MiningJob:
    """What is mined, and with what.

    Args:
        dataset: path, URI or name.
        split: whose queries get negatives.
        mining: the settings.
        model: the encoder, where a method needs one.
        precision: its arithmetic; None for what the hardware is fastest at.
        max_bad_rows: the share of each file's rows that may be bad.
        seed, round: fix what is drawn; the round stands in the table.
        embeddings: of the passages, a store that `model` made of this data set; made or found in the cache by default.
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


def run_mining(job: MiningJob, output: Path, say: Callable[[str], None]) -> tuple[MiningResult, str | None]:
    """Mine, and commit the table to `output`.

    Returns:
        What was found, and a line on bad rows, if any were left out.

    Raises:
        UserError: something a user can mend; nothing is written then.
    """
    check_mining(job.mining)
    if job.embeddings and not set(BY_ENCODER) & set(job.mining.methods):
        raise ConfigError(f"--method {job.mining.method} needs none", "--embeddings", "add dense or cross-query to it")
    if output.exists():
        raise StorageError("is there already", str(output), "give another --output, or remove it")
    check_writable(output)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = choose_precision(job.precision, device)
    judge = CrossEncoder(job.mining.judge, device, precision) if job.mining.judge else None
    dataset = _open(job, say)
    check_data(dataset, job.split, job.mining)
    if "bm25" in job.mining.methods and (warning := Analysis.of(dataset.passages()).warning):
        say(warning)
    embeddings = documents = None
    if set(BY_ENCODER) & set(job.mining.methods):
        retriever = load_for_encoding(job.model, precision, device)
        documents = open_matching_store(job.embeddings, job.model, retriever, dataset) if job.embeddings else None
        say(f"{dataset.name}: encoding {'queries ' * bool(documents)}with {job.model.model} ({precision} on {device})")
        queries = [dataset.queries.texts[int(query)] for query in dataset.positives(job.split).queries]
        documents = documents or embed_corpus(job.model, retriever, dataset)
        embeddings = Embeddings(encode_texts(retriever, queries, "query", "queries"), documents)
    mined = mine(dataset, job.split, job.mining, embeddings=embeddings, judge=judge, seed=job.seed, round=job.round)
    if not len(mined.table):
        raise DataError(f"no negative is left; {_told(mined)}", dataset.name, "loosen what removed them")
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
    return mined, str(dataset.quarantine) if dataset.quarantine.total else None


def format_counts(mined: MiningResult) -> str:
    """How many candidates each method had, why how many went, and how many are kept: a column a method."""
    there = {why for told in mined.counts.values() for why in told}
    rows = ["candidates", *(why for why in (*REASONS[1:], REPEATED) if why in there), "kept"]
    width = max(map(len, rows))
    cells = {name: [f"{told.get(name, 0):>15,}" for told in mined.counts.values()] for name in rows}
    head = " " * width + "".join(f"{method:>15}" for method in mined.counts)
    return "\n".join([head, *(f"{name:<{width}}" + "".join(line) for name, line in cells.items())])


def _open(job: MiningJob, say: Callable[[str], None]) -> RetrievalDataset:
    """The data set with the judgements of all its splits: no query's positive there is to be a negative here."""
    dataset = open_dataset(job.dataset, [job.split], max_bad_rows=job.max_bad_rows, run=in_processes, say=say)
    place = str(dataset.place)
    return open_dataset(place, [job.split, *splits_of(fetched(place) or Path(place))])


def _told(mined: MiningResult) -> str:
    """The counts in one line."""
    return "; ".join(
        f"{method}: {', '.join(f'{name} {count:,}' for name, count in told.items())}"
        for method, told in mined.counts.items()
    )
