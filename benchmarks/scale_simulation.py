"""Metadata of a billion documents on 64 logical nodes: what planning, manifests and merging take in the driver.

Run: `python benchmarks/scale_simulation.py [--shards 100000] [--nodes 64] [--json PATH]`. The functions of the commands
run as they are: plan of a store of 10^9 rows, its missing shards, its manifest, its opening, tasks for actors, ranking
keys of 64 nodes, tables of ids. What a node would compute is replaced by the metadata that it would write: shards are
empty files with manifests, rankings are random keys of 10^9 documents, ids are counters. Each section has a process of
its own; memory is the growth of its peak. Times are processor seconds of the driver, those of the system included.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np

from ends import End, parser, report

DOCUMENTS = 10**9
K, BATCH = 1_000, 1_000  # ranks and queries of a batch of rankings
RAY_ACTORS = 2


class Meter:
    """Processor seconds, and growth of the peak memory, since it was made."""

    def __init__(self) -> None:
        self._begin, self._memory = process_time(), _peak()

    @property
    def seconds(self) -> float:
        """Processor seconds until now."""
        return process_time() - self._begin

    @property
    def grown(self) -> float:
        """Bytes by which the peak has grown."""
        return _peak() - self._memory


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def writer_of(folder: Path, shards: int) -> Any:
    """Return the writer of a store of 10^9 rows in some shards."""
    from raytriever.encoding.writer import EmbeddingPlan, StoreWriter

    plan = EmbeddingPlan(
        model="simulated",
        model_digest="0" * 64,
        dataset="counters",
        data_digest="0" * 64,
        side="passage",
        prefix="",
        length=128,
        pooling="mean",
        similarity="cosine",
        precision="bf16",
        dtype="int8",
        rows=DOCUMENTS,
        width=1,
        shard_rows=-(-DOCUMENTS // shards),
    )
    return StoreWriter(folder, plan)


def write_metadata(writer: Any, number: int) -> None:
    """Write what is left of a shard without its embeddings: an empty file and the manifest."""
    from raytriever.encoding.store import EMBEDDINGS, shard_folder
    from raytriever.store.commit import MANIFEST

    folder = shard_folder(writer.path, number)
    folder.mkdir()
    (folder / EMBEDDINGS).touch()
    entry = {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    manifest = {"files": {EMBEDDINGS: entry}, "meta": {"key": writer.plan.key, "left_out": {}}}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def manifests(shards: int, nodes: int) -> dict[str, float]:
    """Plan a store, write the metadata of its shards node by node, continue it when a tenth is there, and open it."""
    from raytriever.encoding.store import EmbeddingStore

    with TemporaryDirectory() as folder:
        os.environ["RAYTRIEVER_CACHE"] = f"{folder}/cache"
        writer = writer_of(Path(folder) / "store", shards)
        meter = Meter()
        writer.begin()
        missing = writer.missing()
        planning = meter.seconds
        assert len(missing) == shards
        order = [number for node in range(nodes) for number in missing[node::nodes]]
        for number in order[: shards // 10]:
            write_metadata(writer, number)
        meter = Meter()
        writer.begin()
        left = writer.missing()
        continuing = meter.seconds
        assert set(left) == set(order[shards // 10 :])
        for number in left:
            write_metadata(writer, number)
        meter = Meter()
        writer.finish("counters (passage)", [])
        finishing, finishing_memory = meter.seconds, meter.grown
        size = (writer.path / "manifest.json").stat().st_size
        meter = Meter()
        store = EmbeddingStore.open(writer.path)
        opening = meter.seconds
        meter = Meter()
        EmbeddingStore.open(writer.path)
        again = meter.seconds
        assert len(store) == DOCUMENTS
        return {
            "encode: planning and looking for shards, none there (s)": planning,
            "encode: the same, a tenth of them there (s)": continuing,
            "encode: writing the manifest (s)": finishing,
            "encode: memory of the driver (MB)": meter.grown / 1e6 + finishing_memory / 1e6,
            "encode: manifest (MB)": size / 1e6,
            "encode: opening the store, digests compared (s)": opening,
            "encode: opening it again (s)": again,
            "encode: driver, seconds of a shard": (planning + finishing) / shards,
            "encode: driver, bytes of a shard": finishing_memory / shards,
        }


@dataclass
class MetadataEncoder:
    """Encoder of shards that writes their metadata; `cluster.encoding` sends it to its actors."""

    writer: Any
    on_progress: Callable[[int], None] | None = None

    def encode(self, numbers: Sequence[int]) -> Any:
        """Write the metadata of shards, and yield their numbers."""
        for number in numbers:
            write_metadata(self.writer, number)
            yield number


def tasks(shards: int, nodes: int) -> dict[str, float]:
    """Send shards to actors by Ray Data, as `encode` does."""
    import ray

    from raytriever.cluster.encoding import ActorPool, run_in_actors

    del nodes
    ray.init(address="local", num_cpus=RAY_ACTORS, include_dashboard=False, log_to_driver=False)
    with TemporaryDirectory() as folder:
        writer = writer_of(Path(folder) / "store", shards)
        writer.begin()
        encoded = 0

        def advance(rows: int) -> None:
            nonlocal encoded
            encoded += rows

        meter = Meter()
        run_in_actors(ActorPool(RAY_ACTORS, RAY_ACTORS, gpus=0.0))(MetadataEncoder(writer), range(shards), advance)
        assert encoded == DOCUMENTS
        seconds, grown = meter.seconds, meter.grown
    ray.shutdown()
    return {
        "encode: driver of Ray Data, seconds of a task": seconds / shards,
        "encode: driver of Ray Data, kB of a task": grown / 1e3 / shards,
    }


def merging(shards: int, nodes: int) -> dict[str, float]:
    """Merge the rankings of all nodes as they arrive, and in two levels; the results are equal."""
    from raytriever.index.ranking import merge_keys

    del shards
    rng = np.random.default_rng(0)
    rankings = [np.sort(rng.integers(0, 2**63, (BATCH, K), dtype=np.uint64), axis=1) for _ in range(nodes)]
    best = np.full((BATCH, K), np.uint64(2**64 - 1))
    merge_keys([best, best], K)
    meter = Meter()
    for keys in rankings:
        best = merge_keys([best, keys], K)
    driver = meter.seconds
    group = round(nodes**0.5)
    firsts, longest = [], 0.0
    for start in range(0, nodes, group):
        meter = Meter()
        firsts.append(merge_keys(rankings[start : start + group], K))
        longest = max(longest, meter.seconds)
    meter = Meter()
    both = merge_keys(firsts, K)
    second = meter.seconds
    assert (both == best).all()
    return {
        f"search: merging {nodes} rankings in the driver, {BATCH:,} queries, k = {K:,} (s)": driver,
        f"search: the same in two levels, {group} at a time: on a node (s)": longest,
        "search: the same in two levels: in the driver (s)": second,
        "search: merging, seconds of a key": driver / (nodes * BATCH * K),
    }


def ids(shards: int, nodes: int) -> dict[str, float]:
    """Order counters as ids, at two sizes."""
    from raytriever.index.exact.search import TieOrder, tie_order

    del shards, nodes
    seconds, grown, sizes = [], [], (1_000_000, 4_000_000)
    TieOrder.of(tie_order(["1"]))  # imports
    for size in sizes:
        meter = Meter()
        TieOrder.of(tie_order(str(number) for number in range(size)))
        seconds.append(meter.seconds)
        grown.append(meter.grown)  # beyond the peak of the smaller size
    return {
        f"search: ordering {sizes[1]:,} ids (s)": seconds[1],
        "search: ordering ids, bytes of an id": grown[1] / (sizes[1] - sizes[0]),
        "search: ordering ids, exponent of time": log(seconds[1] / seconds[0], 4),
    }


def reports(shards: int, nodes: int) -> dict[str, float]:
    """Sort and count the reports of the shards of a preparation."""
    from raytriever.data.formats.plan import Part
    from raytriever.data.prepare.pipeline import count_rows
    from raytriever.data.prepare.shards import ShardReport

    rows = DOCUMENTS // shards
    parts = [Part.__new__(Part) for _ in range(nodes)]
    for number, part in enumerate(parts):
        object.__setattr__(part, "where", f"corpus-{number:05}.jsonl")
        object.__setattr__(part, "split", None)
    meter = Meter()
    shard_reports = [ShardReport(number % nodes, number // nodes, rows) for number in range(shards)]
    shard_reports.sort(key=lambda each: each.stem)
    files, entries = count_rows(parts, shard_reports, {})
    assert sum(file["rows"] for file in files) == rows * shards
    assert not entries
    return {
        "prepare: sorting and counting the reports of all shards (s)": meter.seconds,
        "prepare: reports, bytes of a shard": meter.grown / shards,
    }


def terms(shards: int, nodes: int) -> dict[str, float]:
    """Number the terms of blocks of BM25, at two numbers of blocks; a tenth of a block's terms are new."""
    from raytriever.mining.postings import PostingsBlock, merge

    del shards, nodes
    count, new = 5_000, 500
    empty = np.zeros(0, np.uint32)
    seconds = []
    for blocks in (500, 2_000):
        rng = np.random.default_rng(0)
        names = [
            [f"t{term}" for term in rng.integers(0, max(1, number * new), count - new)]
            + [f"t{term}" for term in range(number * new, (number + 1) * new)]
            for number in range(blocks)
        ]
        zeros, lengths = np.zeros(count, np.int64), np.ones(1, np.int64)
        some = [PostingsBlock(each, zeros, empty, empty, lengths) for each in names]
        merge(partial(list, some[:2]), lambda _, length, dtype: np.empty(length, dtype))
        meter = Meter()
        merge(partial(list, some), lambda _, length, dtype: np.empty(length, dtype))
        seconds.append(meter.seconds)
    return {
        "bm25: numbering the terms of 2,000 blocks (s)": seconds[1],
        "bm25: numbering terms, exponent of time in blocks": log(seconds[1] / seconds[0], 4),
    }


SECTIONS: dict[str, Callable[[int, int], dict[str, float]]] = {
    "manifests": manifests,
    "tasks": tasks,
    "merging": merging,
    "ids": ids,
    "reports": reports,
    "terms": terms,
}
RAY_SHARDS = 1_000


def main() -> None:
    """Run every section in a process, and report."""
    arguments = parser((__doc__ or "").splitlines()[0])
    arguments.add_argument("--shards", type=int, default=100_000, metavar="N", help="shards of the store")
    arguments.add_argument("--nodes", type=int, default=64, metavar="N", help="logical nodes")
    arguments.add_argument("--section", choices=SECTIONS, help="run one section in this process, and print JSON")
    options = arguments.parse_args()
    if options.section:
        from raytriever.activity import quiet

        shards = min(options.shards, RAY_SHARDS) if options.section == "tasks" else options.shards
        with quiet():  # a command has such a block open, too
            print(json.dumps(SECTIONS[options.section](shards, options.nodes)))
        return
    ends = {}
    for section in SECTIONS:
        began = perf_counter()
        words = ["--section", section, "--shards", str(options.shards), "--nodes", str(options.nodes)]
        done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
        ends |= {name: End(value, "-", True) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
        print(f"{section}: {perf_counter() - began:,.0f} s", file=sys.stderr, flush=True)
    report("Scale", ends, options.json)


if __name__ == "__main__":
    main()
