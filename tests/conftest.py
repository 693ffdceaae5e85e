"""What tests share: the data packs, wherever this machine keeps them, an encoder and a data set of their own, and a
CUDA device."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from beir import write_beir

with suppress(ModuleNotFoundError):  # the tests of a GPU do without
    from hypothesis import HealthCheck, settings

    # The same examples whenever the code is the same: what fails belongs to a change.
    settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("same")

REPOSITORY = Path(__file__).parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but the first and every n-th case of a test with `fast_every(n)` as slow."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("fast_every")
        if marker is None or item.get_closest_marker("gpu") is not None:
            continue
        function = item.nodeid.partition("[")[0]
        if seen[function] % marker.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[function] += 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Never visit what is made until the tests are collected to collect garbage: that took a tenth of their time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Functions of numba are compiled by one test process; the others wait, and read its file in the cache."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    locks = Path(tempfile.gettempdir()) / f"compiled-once-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    compile_function, outermost = Dispatcher.compile, True

    def compile_alone(dispatcher: Dispatcher, signature: object) -> object:
        nonlocal outermost
        with global_compiler_lock:
            if not outermost:  # a function that another one calls
                return compile_function(dispatcher, signature)
            function = dispatcher.py_func
            with open(locks / f"{function.__module__}.{function.__qualname__}", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                outermost = False
                try:
                    return compile_function(dispatcher, signature)
                finally:
                    outermost = True

    Dispatcher.compile = compile_alone
    yield
    Dispatcher.compile = compile_function


@pytest.fixture(scope="module", autouse=True)
def cache_of_the_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests of a file have a cache of their own: they neither read nor fill the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYTRIEVER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def data_packs() -> Path:
    """The folder of the data packs; tests that use it carry the `data` marker."""
    folder = (REPOSITORY / os.environ.get("RAYTRIEVER_DATA", "../shared/data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no data packs at {folder}: name their folder with RAYTRIEVER_DATA")
    return folder


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real transformers checkpoint, small enough to train in a test: random weights, two layers of dimension 32."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny") / "encoder"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces = [chr(code) for code in range(33, 127)]
    vocabulary = [*special, *pieces, *(f"##{piece}" for piece in pieces)]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names).save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def large_encoder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_encoder` with so many further tokens that each of three workers has a shard above `remote.SMALL_BYTES`."""
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("large") / "encoder"
    shutil.copytree(tiny_encoder, folder)
    torch.manual_seed(0)
    model = BertModel.from_pretrained(tiny_encoder)
    model.resize_token_embeddings(40_000, mean_resizing=False)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def other_encoder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model directory with other weights, another dimension, a tokenizer with other ids, and a prompt of queries."""
    from transformers import BertConfig, BertModel

    from raytriever.models.model_settings import ModelConfig
    from raytriever.models.retriever import load_retriever
    from raytriever.models.save_model import write_model

    source, folder = (tmp_path_factory.mktemp("other") / name for name in ("source", "encoder"))
    shutil.copytree(tiny_encoder, source)
    tokenizer = json.loads((source / "tokenizer.json").read_bytes())
    vocabulary = tokenizer["model"]["vocab"]
    ids = {piece: 3 + len(vocabulary) - number for piece, number in vocabulary.items() if number > 3}
    vocabulary.update(ids)
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **sizes)).save_pretrained(source)
    folder.mkdir()
    write_model(load_retriever(ModelConfig(str(source), query_prompt="find: ")), folder)
    return folder


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A retrieval data set in BEIR layout that a tiny encoder can learn: a passage spells its query's letters twice."""
    rng = np.random.default_rng(7)
    words = ["".join(rng.choice(list("abcdefghij"), 6)) for _ in range(160)]
    parts = {"train": range(96), "dev": range(96, 128), "test": range(128, 160)}
    splits = {split: [(number, number) for number in numbers] for split, numbers in parts.items()}
    documents = [{"title": "", "text": f"{word} is {word[::-1]}"} for word in words]
    queries = [f"what is {word}" for word in words]
    return write_beir(tmp_path_factory.mktemp("data") / "letters", documents, queries, **splits)


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> torch.device:
    """The CUDA device of `make test-gpu`."""
    return torch.device(request.param, 0)


@pytest.fixture
def handled_interrupts() -> Iterator[None]:
    """SIGINT interrupts, even if the parent process ignored it, as shells do for background jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A real S3 server."""
    from object_store import object_store

    with object_store(tmp_path_factory.mktemp("store")) as running:
        yield running
