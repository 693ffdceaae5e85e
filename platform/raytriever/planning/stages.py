"""Stages of a plan: bytes, hours and requests of each, a pure function of settings, model and coefficients.

Every stage is what its command does today, on as many nodes as it uses today: `prepare`, `encode`, `evaluate` and
`train` use all, BM25, dense mining and indexes use one. Parts of a stage follow one another, except where the
formula takes the slower of two. Coefficients are seconds of one core; n cores take an n-th.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2

from raytriever.data.negatives import ROW_BYTES
from raytriever.data.prepare.pipeline import chunk_bytes
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.faiss_finders import CODES, POINTS, default_code_bytes, default_lists
from raytriever.index.exact.device import DOCUMENT_SHARE
from raytriever.mining.config import MiningConfig
from raytriever.mining.miner import BLOCK as CANDIDATES
from raytriever.mining.postings import BLOCK as BM25_BLOCK
from raytriever.planning.workload import GB, Workload
from raytriever.search.approximate import bytes_of_finder, memory_of_building

HOUR = 3600.0
REQUEST_BYTES = 8 * 2**20  # of one request to the storage
# Terms of a collection of n words: 44 n^0.49 (Heaps' law; Manning, Raghavan & Schütze 2008, section 5.1.1).
HEAPS = (44.0, 0.49)
MINING = MiningConfig(method="dense", num_negatives=10, relative_margin=0.05)
_SEARCH_ROOM = 256 * 2**20  # of the best documents of some thousand queries
# FAISS's defaults: iterations of k-means for lists and for codes, and points for each centre.
_LIST_ROUNDS, _CODE_ROUNDS = 10, 25
_TABLE_ROW = 21  # bytes of a negative in memory
_CHECKPOINTS, _CHECKPOINT_WEIGHT = 2, 12  # the newest and the best one; weights and two moments in float32
_ID = 12  # bytes of an id and of the other columns of a row
_NUMBER = 8  # bytes of a position or an offset
_KEYS = 40  # bytes of the hashes of a document, until the positions are known


@dataclass(frozen=True)
class StageNeeds:
    """Needs of a stage.

    Args:
        disk: bytes that it writes, at their largest.
        driver: memory of the process of the command, bytes.
        worker: memory of each worker, bytes; 0 without workers. Of a training worker that on its GPU.
        workers_per_node: workers whose memory is on one node.
        parts: hours of what follows one another.
        nodes, gpus: that work at it.
        requests: to the storage, if the disks are an object store.
    """

    name: str
    disk: float
    driver: float
    worker: float
    workers_per_node: int
    parts: Mapping[str, float]
    nodes: int
    gpus: int
    requests: float

    @property
    def hours(self) -> float:
        """Hours of all parts."""
        return sum(self.parts.values())

    @property
    def slowest(self) -> str:
        """Name of the part that takes longest."""
        return max(self.parts, key=self.parts.__getitem__)


def stages(work: Workload) -> list[StageNeeds]:
    """Return the needs of all stages, in the order of the route."""
    return [
        prepare(work),
        bm25(work),
        encode(work),
        search(work),
        mine(work),
        index(work, "hnsw"),
        index(work, "ivfpq"),
        train(work),
    ]


def prepare(work: Workload) -> StageNeeds:
    """Shards of texts and tokens by all cores, and positions of all ids by the driver."""
    config, rates = work.config, work.rates
    texts = work.words * rates["text.bytes_per_word"]
    source = texts + config.documents * _ID
    chunk = chunk_bytes(int(source))
    chunks = ceil(source / chunk)
    tokens = work.token_bytes + config.documents * _NUMBER
    columns = config.documents * (_ID + 3 * _NUMBER + _KEYS)
    read = source * rates["prepare.read_seconds_per_byte"] / config.all_nodes  # as many files as nodes
    write = work.words * rates["prepare.shard_seconds_per_word"] / work.cores
    disk = texts + columns + tokens
    return StageNeeds(
        name="prepare",
        disk=disk,
        driver=work.process_bytes + config.documents * rates["prepare.assemble_bytes_per_document"],
        worker=work.process_bytes + chunk * rates["prepare.shard_bytes_per_byte"],
        workers_per_node=config.cores_per_node,
        parts=_hours(
            {
                "tokenisation": max(read, write),
                "storage": (source + disk) / work.bytes_per_second,
                "ids": work.comparisons * rates["prepare.assemble_seconds_per_comparison"],
                "digests": work.hashing(source + disk),
            }
        ),
        nodes=config.all_nodes,
        gpus=0,
        requests=_requests(source + disk, 6 * chunks),
    )


def bm25(work: Workload) -> StageNeeds:
    """Index of BM25, and its ranking of all queries, on one node."""
    config, rates = work.config, work.rates
    postings = work.words * rates["bm25.postings_per_word"]
    terms = HEAPS[0] * work.words ** HEAPS[1]
    block_words = min(BM25_BLOCK, config.documents) * config.words_per_document
    # The driver holds the length of each document, and the numbers of the terms of each block.
    blocks = ceil(config.documents / BM25_BLOCK)
    block_terms = blocks * HEAPS[0] * block_words ** HEAPS[1]
    pairs = (config.queries + config.dev_queries) * config.documents
    disk = 16 * postings  # blocks and merged postings, 8 bytes each
    read = work.words * rates["text.bytes_per_word"]
    return StageNeeds(
        name="BM25",
        disk=disk,
        driver=work.process_bytes + terms * rates["bm25.bytes_per_term"] + config.documents * _NUMBER + 4 * block_terms,
        worker=work.process_bytes + block_words * rates["bm25.block_bytes_per_word"],
        workers_per_node=config.cores_per_node,
        parts=_hours(
            {
                "analysis": work.words * rates["bm25.block_seconds_per_word"] / config.cores_per_node,
                "merging": postings * rates["bm25.merge_seconds_per_posting"],
                "ranking": pairs * rates["bm25.search_seconds_per_pair"] / config.cores_per_node,
                "storage": (read + 2 * disk) / (config.read_per_node * GB),
                # The first command that opens the prepared data compares them; the postings are hashed once.
                "digests": work.hashing(prepare(work).disk + disk / 2),
            }
        ),
        nodes=1,
        gpus=0,
        requests=_requests(read + 2 * disk, 6 * blocks),
    )


def encode(work: Workload) -> StageNeeds:
    """Embeddings of all documents, by an actor on each GPU or core."""
    config, rates, store = work.config, work.rates, work.store
    flops = config.documents * work.flops(config.words_per_document)
    tokens = work.token_bytes
    actors = config.gpus or work.cores
    shard = store.shard_rows * work.model.width * 4
    return StageNeeds(
        name="encode",
        disk=store.bytes,
        driver=work.process_bytes + store.shards * rates["encode.driver_bytes_per_shard"],
        # One shard is encoded, one is written, and the tokens of one are read.
        worker=work.process_bytes + 4 * work.model.weights + 3 * shard,
        workers_per_node=ceil(actors / config.all_nodes),
        parts=_hours(
            {
                # The driver gives out shards meanwhile, in tasks of one or more.
                "arithmetic": max(
                    flops / work.flops_per_second("encode"), store.shards * rates["encode.driver_seconds_per_task"]
                ),
                "storage": (tokens + store.bytes) / work.bytes_per_second,
                "manifests": store.shards * rates["encode.driver_seconds_per_shard"],
            }
        ),
        nodes=config.all_nodes,
        gpus=config.gpus,
        requests=_requests(tokens + store.bytes, 4 * store.shards),
    )


def search(work: Workload) -> StageNeeds:
    """Exact search for the dev queries: actors search their shards, the driver merges."""
    config, rates, store = work.config, work.rates, work.store
    actors = min(config.gpus or work.cores, store.shards)
    keys = config.dev_queries * min(config.depth, config.documents)
    return StageNeeds(
        name="exact search",
        disk=_ID * keys,
        driver=work.process_bytes + work.id_bytes + 5 * _NUMBER * keys,
        worker=work.process_bytes + _ID * config.documents + _SEARCH_ROOM + work.block_bytes,
        workers_per_node=1,  # the order of ids is shared by the workers of a node
        parts=_hours(
            {
                "digests": work.hashing(store.bytes),
                "ids": work.id_seconds,
                "storage": store.bytes / work.bytes_per_second,
                "products": work.products(config.dev_queries, max(1, config.gpus), work.cores),
                "merging": actors * keys * rates["search.merge_seconds_per_key"],
            }
        ),
        nodes=config.all_nodes,
        gpus=config.gpus,
        requests=_requests(2 * store.bytes, 4 * store.shards),
    )


def mine(work: Workload) -> StageNeeds:
    """Hard negatives of all training queries by exact search, in one process with one GPU or node."""
    config, store = work.config, work.store
    gpus = min(1, config.gpus)
    per_block = max(1, CANDIDATES // (MINING.depth + 1))
    memory = DOCUMENT_SHARE * config.gpu_memory if gpus else config.memory_per_node - work.id_bytes / GB
    # The embeddings are read again for each block of queries, unless they stay in memory.
    passes = 1 if 6 * config.documents * work.model.width < memory * GB else ceil(config.queries / per_block)
    negatives = config.queries * MINING.num_negatives
    return StageNeeds(
        name="mining",
        disk=negatives * ROW_BYTES,
        driver=work.process_bytes
        + work.id_bytes
        + work.block_bytes
        + 4 * config.queries * work.model.width
        + 5 * _NUMBER * CANDIDATES
        + 2 * negatives * _TABLE_ROW,
        worker=0,
        workers_per_node=0,
        parts=_hours(
            {
                "ids": work.id_seconds,
                "storage": passes * store.bytes / (config.read_per_node * GB),
                "products": work.products(config.queries, 1, config.cores_per_node),
            }
        ),
        nodes=1,
        gpus=gpus,
        requests=_requests(passes * store.bytes, 2 * passes * store.shards),
    )


def index(work: Workload, kind: str) -> StageNeeds:
    """Approximate index, built in one process from embeddings in a file."""
    config, rates, width = work.config, work.rates, work.model.width
    documents, cores = config.documents, config.cores_per_node
    embeddings = 4 * documents * width
    settings = IndexConfig(index=kind)
    finder = bytes_of_finder(settings, documents, width)
    if kind == "hnsw":
        comparison = width * rates["hnsw.build_seconds_per_product"] + rates["hnsw.build_seconds_per_visit"]
        build = documents * log2(max(2, documents)) * comparison
    else:
        build = 2 * list_scores(documents, default_lists(documents)) * width * rates["ivfpq.list_seconds_per_flop"]
        build += code_scores(documents, default_code_bytes(width)) * rates["ivfpq.code_seconds_per_score"]
    return StageNeeds(
        name=f"index {kind}",
        disk=finder + embeddings + 2 * _NUMBER * documents,
        driver=work.process_bytes + memory_of_building(settings, documents, width) + work.id_bytes,
        worker=0,
        workers_per_node=0,
        parts=_hours(
            {
                "ids": work.id_seconds,
                "storage": (work.store.bytes + finder + embeddings) / (config.read_per_node * GB),
                "building": build / cores,
                "digests": work.hashing(finder + embeddings),
            }
        ),
        nodes=1,
        gpus=0,
        requests=_requests(work.store.bytes + finder + embeddings, 2 * work.store.shards),
    )


def list_scores(documents: int, lists: int) -> int:
    """Return the scores of documents and centres of lists that building an inverted file computes."""
    return _LIST_ROUNDS * min(documents, POINTS * lists) * lists + documents * lists


def code_scores(documents: int, code_bytes: int) -> int:
    """Return the scores of parts of documents and centres of codes that product quantisation computes."""
    return (_CODE_ROUNDS * min(documents, POINTS * CODES) + documents) * CODES * code_bytes


def train(work: Workload) -> StageNeeds:
    """All epochs of training with data parallelism."""
    config = work.config
    workers = max(1, config.gpus)
    forward = work.flops(config.words_per_query)
    forward += (1 + config.negatives_per_query) * work.flops(config.words_per_document)
    steps = config.epochs * config.queries / config.batch_size
    gradients = 4 * work.model.weights * 2 * (workers - 1) / workers
    checkpoints = _CHECKPOINTS * _CHECKPOINT_WEIGHT * work.model.weights
    return StageNeeds(
        name="train",
        disk=checkpoints,
        driver=work.process_bytes + 2 * config.queries * MINING.num_negatives * _TABLE_ROW,
        worker=work.model.training_bytes,
        workers_per_node=0 if config.gpus else 1,
        parts=_hours(
            {
                "arithmetic": config.epochs * config.queries * 3 * forward / work.flops_per_second("train"),
                "gradients": steps * gradients / (config.network_per_node * GB),
            }
        ),
        nodes=config.all_nodes if config.gpus else 1,
        gpus=config.gpus,
        requests=_requests(checkpoints, 10 * _CHECKPOINTS),
    )


def _hours(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: each / HOUR for name, each in seconds.items()}


def _requests(moved: float, files: float) -> float:
    """Return the requests of moving bytes to or from files, each in parts of `REQUEST_BYTES`."""
    return files + moved / REQUEST_BYTES
