"""Commands that use a model: `search`, `encode`, `index` and `export`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from raytriever.cli.arguments import Argument, number
from raytriever.cli.command import Command, Given, SettingsGroup
from raytriever.cli.shared_arguments import DATA, EMBEDDINGS, MODEL, PRECISION, PRECISION_AND_SEED, optional_path
from raytriever.core.errors import ConfigError
from raytriever.core.paths import PATH
from raytriever.core.setting_declarations import Need
from raytriever.core.terminal import warn
from raytriever.data.data_settings import DataConfig
from raytriever.evaluation.system_names import SYSTEM, parse_system
from raytriever.experiments.export.export_settings import ExportConfig
from raytriever.models.model_settings import READING, ModelConfig
from raytriever.retrieval.encoding.encoding_settings import EncodeConfig
from raytriever.retrieval.external_encoders.endpoint_settings import ENCODER, EncoderConfig, endpoint_needs
from raytriever.retrieval.index.approximate.index_settings import IndexConfig

_TOP = Argument(
    "--top",
    "number of passages to print (default: 5)",
    number("--top", int, 1, math.inf, "give at least 1"),
    metavar="K",
    default=5,
)


def _question(flag: str | None) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not text.strip():
            raise ConfigError("the query is empty", flag, 'give a few words, such as "read a file line by line"')
        return text

    return read


def search(given: Given) -> Iterator[str]:
    """Find the best passages for a query."""
    from raytriever.evaluation.composed.open_systems import search_system
    from raytriever.retrieval.search.exact_search import format_hits

    words = given.query, given.top, given.threshold, given.training.precision
    system = parse_system(given.system, given.model)
    yield format_hits(search_system(system, given.data.dataset, *words, optional_path(given.calibration)))


_CALIBRATION = Argument(
    "--calibration",
    "calibration.json of this model and data set (default: the one in the encoder's directory)",
    PATH,
    metavar="FILE",
)


def _threshold(text: str) -> float | str:
    return text if text == "kept" else number("--threshold", float, -math.inf, math.inf, "give a score or kept")(text)


SEARCH = Command(
    search,
    free_text="query",
    arguments=[
        Argument("query", "the question", _question(None)),
        Argument(
            "--model",
            "an encoder, `bm25`, a fusion such as `bm25+minilm`, or `MODEL>CROSS-ENCODER@100` (default: minilm)",
            SYSTEM,
            metavar="MODEL",
            dest="system",
            default=ModelConfig().model,
        ),
        _TOP,
        Argument(
            "--threshold",
            "lowest score of a printed passage; kept: the threshold for the target kept in calibration.json (default: "
            "print all; a line says if the best passage is below the answer threshold of calibration.json)",
            _threshold,
            metavar="SCORE",
        ),
        _CALIBRATION,
    ],
    settings=[
        SettingsGroup("data", DataConfig, "data", "dataset"),
        SettingsGroup("model", EncoderConfig, MODEL.title, *(name for name in ENCODER if name != "model")),
        PRECISION,
    ],
    needs=endpoint_needs("system"),
)


def encode(given: Given) -> Iterator[str]:
    """Encode the passages or the queries of a data set."""
    from raytriever.cluster.encode_on_cluster import run_encoding
    from raytriever.retrieval.encoding.embedding_store import EMBEDDINGS, SCALES

    precision = given.training.precision
    store = run_encoding(given.encoding, given.model, given.data, given.output, warn, precision=precision)
    size = sum(file.stat().st_size for name in (EMBEDDINGS, SCALES) for file in store.path.glob(f"*/*.{name}.npy"))
    yield f"{len(store):,} embeddings of dimension {store.dim}, {store.plan.dtype}, {size / 1e6:,.1f} MB"
    yield f"\n{given.output}"


ENCODE = Command(
    encode,
    output="folder to write the embeddings to",
    settings=[DATA, MODEL, SettingsGroup("encoding", EncodeConfig, "encoding"), PRECISION],
    needs=endpoint_needs(),
)


def index(given: Given) -> Iterator[str]:
    """Build an approximate index, or open it, evaluate it and search it."""
    from raytriever.core.store.disk import files_below
    from raytriever.retrieval.index.approximate.stored_index import ANN_INDEX
    from raytriever.retrieval.search.approximate_search import format_answers, format_recall, run_index

    opened = run_index(
        given.approximate,
        given.model,
        given.data,
        given.output,
        warn,
        precision=given.training.precision,
        seed=given.training.seed,
        split=given.split,
        embeddings=optional_path(given.embeddings),
        calibration=optional_path(given.calibration),
    )
    embeddings, size = (
        opened.index.embeddings,
        sum(file.stat().st_size for file in files_below(given.output / ANN_INDEX)),
    )
    action = "opened" if opened.seconds is None else f"built in {opened.seconds:,.1f} s"
    yield (
        f"{given.approximate.index} over {len(embeddings):,} passages, dimension {embeddings.shape[1]}, {action}; "
        f"{size / 1e6:,.1f} MB, and {embeddings.nbytes / 1e6:,.1f} MB of embeddings"
    )
    if given.split:
        yield "\n" + format_recall(opened, given.split)
    if given.query:
        yield "\n" + format_answers(opened, given.query, given.top)
    yield f"\n{given.output}"


INDEX = Command(
    index,
    free_text="query",
    output="folder of the index; an existing index is opened, and built again if the passages have changed",
    writes=lambda given: not given.output.exists(),
    arguments=[
        EMBEDDINGS,
        Argument("--split", "compare the index with exact search on the queries of this split"),
        Argument("--query", "print the best passages for this query", _question("--query"), metavar="TEXT"),
        _TOP,
        _CALIBRATION,
    ],
    settings=[DATA, MODEL, SettingsGroup("approximate", IndexConfig, "index"), PRECISION_AND_SEED],
    needs={"top": [Need("query")], "calibration": [Need("query")], **endpoint_needs()},
)


def export_model(given: Given) -> Iterator[str]:
    """Write a model for other runtimes."""
    from raytriever.experiments.export.export_model import export, push_to_hub

    yield from map(str, export(given.model, given.export, given.output, warn))
    if given.export.push_to_hub:
        yield push_to_hub(given.output, given.export.push_to_hub)
    yield f"\n{given.output}"


EXPORT = Command(
    export_model,
    output="a new directory",
    settings=[SettingsGroup("model", ModelConfig, "model", *READING), SettingsGroup("export", ExportConfig, "export")],
)
