"""Real process groups: a state written by one strategy goes on under any other, at another number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from process_group import run_group
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from raytriever.models.checkpoint_model import Slice, whole_tensors

STEPS = 2  # of each strategy
FSDP2 = [("fsdp2", 4), ("zero3", 2), ("fsdp2", 2), ("ddp", 1), ("fsdp2", 1), ("zero1", 2)]
CHAIN = [("ddp", 1), ("zero1", 2), ("zero3", 2), ("zero2", 1), ("zero3", 1), ("zero2", 2), ("ddp", 2)]


def train(chain: list[tuple[str, int]], steps: int, encoder: Path) -> dict[str, torch.Tensor]:
    """Return the state after `steps` steps of each strategy and size of group in turn."""
    state: list[Slice] = []
    for strategy, size in chain:
        parts = run_group(Path(__file__).with_name("state_worker.py"), size, encoder, strategy, steps, state)
        state = [item for part in parts for item in part]
    return dict(whole_tensors(sorted(state, key=lambda item: item.name)))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("chain", [CHAIN, FSDP2])
def test_a_state_goes_from_strategy_to_strategy(chain: list[tuple[str, int]], tiny_encoder: Path) -> None:
    expected = train([("ddp", 1)], STEPS * len(chain), tiny_encoder)
    actual = train(chain, STEPS, tiny_encoder)
    assert actual.keys() == expected.keys()
    assert {float(value) for name, value in actual.items() if name.endswith(":step")} == {STEPS * len(chain)}
    assert sum(name.endswith(":exp_avg") for name in actual) > 30
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_dense_modules_are_trained_as_by_one_worker(strategy: str, tiny_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    torch.manual_seed(5)
    modules = [Transformer(str(tiny_encoder)), Pooling(32, "mean"), Dense(32, 24), Dense(24, 16, bias=False)]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    expected = train([("ddp", 1)], STEPS, folder)
    actual = train([(strategy, 2)], STEPS, folder)
    assert actual.keys() == expected.keys()
    heads = [name for name in actual if ".head." in name and ":" not in name]
    assert len(heads) == len(modules[2].state_dict()) + len(modules[3].state_dict()), heads
    for name in heads:
        number, _, rest = name.partition(".head.")[2].partition(".")
        stored = modules[2 + int(number)].state_dict()[rest]
        assert (actual[name] - stored).abs().max() > 1e-3  # it was trained
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-4, atol=1e-5, msg=name)
