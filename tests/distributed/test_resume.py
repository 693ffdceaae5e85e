"""Real process groups: a run goes on at another number of workers and under another strategy as if nothing had been."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from object_store import object_store
from process_group import run_group
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import distributed

from raytriever.cluster.train.train_worker import regroup
from raytriever.core.store.remote_folders import SMALL_BYTES
from raytriever.losses.distributed import current_workers
from raytriever.models.checkpoint_model import Slice, whole_tensors
from raytriever.training.training_settings import STRATEGIES

SCRIPT = Path(__file__).with_name("resume_worker.py")
RESUMED = "Resumed from checkpoint step-"
TOLERANCE = 1e-5
STEPS = 8  # of resume_worker
Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Leg:
    """A stretch of a run: under which strategy, on how many workers, before which batch it is stopped, and with which
    settings of the encoder."""

    strategy: str
    size: int
    stop: int = -1
    model: dict[str, object] = field(default_factory=dict)


@pytest.fixture
def run(tmp_path: Path, tiny_encoder: Path, tiny_dataset: Path) -> Callable[..., list[Values]]:
    """Return the logged values of the first worker of every leg."""

    def legs(name: str, *chain: Leg, dropout: float = 0.0) -> list[Values]:
        folder = tmp_path / name
        folder.mkdir()
        results = []
        for leg in chain:
            settings = (leg.strategy, dropout, leg.stop, folder / "checkpoints", leg.model)
            logged = run_group(SCRIPT, leg.size, tiny_encoder, tiny_dataset, *settings)
            for name, value in logged[0].items():
                if name.startswith("parameter/"):
                    assert all(torch.equal(value, other[name]) for other in logged), name
            results.append(logged[0])
        # Nothing is left aside, and the last checkpoint stands.
        names = {path.name for path in (folder / "checkpoints").iterdir()}
        assert f"step-{STEPS}" in names
        assert not [hidden for hidden in names if hidden.startswith(".")]
        return results

    return legs


def assert_close(actual: list[Values], expected: Values, tolerance: float) -> None:
    """Every step of every leg, and what the last one left."""
    curve = {name for name in expected if "@" in name}
    logged = {name for leg in actual for name in leg if "@" in name}
    assert logged == curve
    assert len(curve) == 3 * STEPS + STEPS // 3 + 1
    assert len([name for name in expected if name.startswith("parameter/")]) > 30
    for leg in actual:
        for name, value in leg.items():
            if name.startswith(RESUMED) or name.endswith("attention.self.key.bias"):
                continue  # the softmax of attention cancels that bias: its gradient is noise, which AdamW scales up
            if tolerance:
                torch.testing.assert_close(
                    value, expected[name], rtol=tolerance, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}"
                )
            else:
                assert torch.equal(value, expected[name]), name
    assert actual[-1].keys() >= {name for name in expected if "@" not in name}


def continued(legs: list[Values]) -> list[int]:
    """After which steps legs went on."""
    return [int(name.removeprefix(RESUMED).rstrip(".")) for leg in legs for name in leg if name.startswith(RESUMED)]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_at_the_same_number_of_workers_it_is_the_same_to_the_bit(
    run: Callable[..., list[Values]], strategy: str
) -> None:
    (expected,) = run("whole", Leg(strategy, 2), dropout=0.1)
    actual = run("chain", Leg(strategy, 2, 4), Leg(strategy, 2), dropout=0.1)
    assert_close(actual, expected, 0)
    assert 0 < continued(actual)[0] <= 4


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_in_a_bucket_it_is_the_same_to_the_bit_on_swapped_hosts(
    tmp_path: Path, large_encoder: Path, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    (tmp_path / "store").mkdir()
    hosts = (tmp_path / "one", tmp_path / "two")

    def leg(folder: Path | str, stop: int, *workers_on: Path) -> Values:
        settings = (strategy, 0.0, stop, folder, {}, workers_on)
        return run_group(SCRIPT, 2, large_encoder, tiny_dataset, *settings)[0]

    expected = leg(tmp_path / "whole", -1)
    with object_store(tmp_path / "store") as store:
        store.use(monkeypatch)
        actual = [leg("s3://bucket/checkpoints", 4, *hosts), leg("s3://bucket/checkpoints", -1, *reversed(hosts))]
    for values in actual:
        for name in values.keys() & expected.keys():
            assert torch.equal(values[name], expected[name]), name
    assert actual[0].keys() | actual[1].keys() >= expected.keys()
    assert 0 < continued(actual)[0] <= 4
    shards = list((hosts[1] / "s3" / "bucket" / "checkpoints" / f"step-{STEPS}").glob("*.safetensors"))
    assert min(file.stat().st_size for file in shards) > SMALL_BYTES


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "chain",
    [
        (Leg("ddp", 2, 3), Leg("ddp", 1, 5), Leg("ddp", 2)),
        (Leg("zero1", 2, 2), Leg("zero3", 2, 4), Leg("fsdp2", 1, 5), Leg("ddp", 2, 6), Leg("fsdp2", 2)),
        (Leg("zero3", 2, 2), Leg("zero2", 1, 4), Leg("zero3", 1, 5), Leg("zero2", 2, 6), Leg("zero1", 2)),
    ],
)
def test_from_strategy_to_strategy(run: Callable[..., list[Values]], chain: tuple[Leg, ...]) -> None:
    (expected,) = run("whole", Leg("ddp", 1))
    actual = run("chain", *chain)
    assert_close(actual, expected, TOLERANCE)
    assert len(continued(actual)) == len(chain) - 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_adapters_go_on_to_the_bit(run: Callable[..., list[Values]], strategy: str, precision: str) -> None:
    lora = {"lora_rank": 2, "lora_dropout": 0.1, "precision": precision}
    (expected,) = run("whole", Leg(strategy, 2, model=lora), dropout=0.1)
    actual = run("chain", Leg(strategy, 2, 4, lora), Leg(strategy, 2, model=lora), dropout=0.1)
    assert_close(actual, expected, 0)
    assert 0 < continued(actual)[0] <= 4
    trained = [name for name in expected if "lora_B" in name]
    assert trained
    types = {name: value.dtype for name, value in expected.items() if name.startswith("parameter/")}
    held = torch.bfloat16 if precision == "bf16" else torch.float32
    assert all(kind == (torch.float32 if ".lora_" in name else held) for name, kind in types.items())
    assert all(expected[name].abs().max() > 0 for name in trained)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_activations_may_be_checkpointed_from_some_step_on(run: Callable[..., list[Values]]) -> None:
    (expected,) = run("whole", Leg("ddp", 2), dropout=0.1)
    actual = run(
        "chain",
        Leg("ddp", 2, 3, {"activation_checkpointing": True}),
        Leg("ddp", 2, 5),
        Leg("ddp", 2, model={"activation_checkpointing": True}),
        dropout=0.1,
    )
    assert_close(actual, expected, TOLERANCE)
    assert len(continued(actual)) == 2


STEPS_OF_EACH = 2  # of each strategy


def train(chain: list[tuple[str, int]], steps: int, encoder: Path) -> dict[str, torch.Tensor]:
    """Return the state after `steps` steps of each strategy and size of group in turn."""
    state: list[Slice] = []
    for strategy, size in chain:
        parts = run_group(Path(__file__).with_name("state_worker.py"), size, encoder, strategy, steps, state)
        state = [item for part in parts for item in part]
    return dict(whole_tensors(sorted(state, key=lambda item: item.name)))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_dense_modules_are_trained_as_by_one_worker(strategy: str, tiny_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    torch.manual_seed(5)
    modules = [Transformer(str(tiny_encoder)), Pooling(32, "mean"), Dense(32, 24), Dense(24, 16, bias=False)]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    expected = train([("ddp", 1)], STEPS_OF_EACH, folder)
    actual = train([(strategy, 2)], STEPS_OF_EACH, folder)
    assert actual.keys() == expected.keys()
    heads = [name for name in actual if ".head." in name and ":" not in name]
    assert len(heads) == len(modules[2].state_dict()) + len(modules[3].state_dict()), heads
    for name in heads:
        number, _, rest = name.partition(".head.")[2].partition(".")
        stored = modules[2 + int(number)].state_dict()[rest]
        assert (actual[name] - stored).abs().max() > 1e-3  # it was trained
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-4, atol=1e-5, msg=name)


def main(size: int) -> tuple[list[int] | None, bool]:
    """Regroup in one worker; return the ranks that it gathers, and whether it has a group."""
    rank = distributed.get_rank()
    stays = regroup(size, torch.device("cpu"))
    assert os.environ["WORLD_SIZE"] == str(size)
    if not stays:
        return None, distributed.is_initialized()
    workers = current_workers()
    assert workers.size == size
    return workers.all_gather(torch.tensor([[rank]])).flatten().tolist(), distributed.is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 1])
def test_the_first_ones_are_a_group_and_the_others_none(size: int) -> None:
    stay, leave = [(list(range(size)), size > 1)] * size, [(None, False)] * (3 - size)
    assert run_group(Path(__file__), 3, size) == [*stay, *leave]
