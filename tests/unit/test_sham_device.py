"""The sham device behaves as CUDA does where code can go wrong: placement, copies, syncs, memory, random numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from sham_device import CUDA, Counts, ShamTensor, sham_device, values
from torch import Tensor, nn

from raytriever.errors import ConfigError
from raytriever.models.precision import choose_precision


@pytest.fixture
def counts() -> Iterator[Counts]:
    with sham_device() as counts:
        yield counts


def test_tensors_are_on_the_device_and_have_the_values_of_the_cpu(counts: Counts) -> None:
    tensor = torch.arange(6.0, device=CUDA).reshape(2, 3)
    moved = torch.tensor([[1.0, 2, 3]]).to(CUDA)
    assert tensor.device == moved.device == CUDA
    assert tensor.is_cuda
    assert not tensor.is_cpu
    assert isinstance(tensor, ShamTensor)
    assert values(tensor + moved).tolist() == [[1, 3, 5], [4, 6, 8]]
    assert (tensor + moved).cpu().tolist() == [[1, 3, 5], [4, 6, 8]]
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        tensor.numpy()


def test_two_devices_do_not_mix(counts: Counts) -> None:
    here, there = torch.ones(3, device=CUDA), torch.ones(3)
    for mix in (lambda: here + there, lambda: there @ here, lambda: torch.cat([here, there]), lambda: here.add_(there)):
        with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
            mix()
    assert values(here * torch.tensor(2.0)).tolist() == [2, 2, 2]  # a number may come from the CPU


def test_launches_are_counted_by_line_and_operator(counts: Counts) -> None:
    one = torch.ones(4, 4, device=CUDA)
    counts.reset()
    two = one @ one
    (two.T.reshape(-1)[:3] + 1).sum()  # the views launch nothing, the copy of reshape does
    assert counts.operators == {"mm": 1, "clone": 1, "add": 1, "sum": 1}
    assert counts.totals() == {"launches": 4, "syncs": 0, "pinned": 0, "pageable": 0}
    lines = list(counts.launches)
    assert len(lines) == 2
    assert all(line.startswith("unit/test_sham_device.py:") for line in lines)
    assert lines[0] in counts.table()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: float(x.sum()),
        lambda x: bool((x > 0).all()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.unique(x),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.masked_select(x > 0),
        lambda x: torch.repeat_interleave(x.long()),
        lambda x: x.index_put_((x > 1,), x.new_zeros(())),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.Event().synchronize(),
    ],
)
def test_a_wait_of_the_host_is_a_sync(counts: Counts, read: object) -> None:
    data = torch.arange(4.0, device=CUDA)
    counts.reset()
    read(data)  # type: ignore[operator]
    assert counts.syncs.total() == 1


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x[x.long()],
        lambda x: torch.where(x > 0, x, 0),
        lambda x: torch.repeat_interleave(x.long(), output_size=6),
        lambda x: x.masked_fill(x > 0, 1.0),
        lambda x: torch.full((3,), 2.0, device=x.device),
        lambda x: torch.cuda.Event().record(),
    ],
)
def test_other_work_is_no_sync(counts: Counts, work: object) -> None:
    data = torch.arange(4.0, device=CUDA)
    counts.reset()
    work(data)  # type: ignore[operator]
    assert not counts.syncs


def test_copies_of_pinned_memory_need_not_wait(counts: Counts) -> None:
    pageable, pinned = torch.ones(5), torch.ones(5).pin_memory()
    assert pinned.is_pinned()
    assert not pageable.is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    counts.reset()
    here = pinned.to(CUDA, non_blocking=True)
    assert counts.totals() == {"launches": 0, "syncs": 0, "pinned": 1, "pageable": 0}
    pinned.copy_(here * 3, non_blocking=True)
    torch.empty_like(here, device="cpu", pin_memory=True).copy_(here, non_blocking=True)
    assert here.to("cpu", non_blocking=True).is_pinned()
    assert counts.totals() == {"launches": 1, "syncs": 0, "pinned": 4, "pageable": 0}
    pageable.to(CUDA, non_blocking=True)
    pinned.to(CUDA)
    here.copy_(pageable)
    assert counts.totals() == {"launches": 1, "syncs": 3, "pinned": 5, "pageable": 2}
    assert pinned.tolist() == [3] * 5


def test_memory_is_taken_given_back_and_limited() -> None:
    with sham_device(memory=1_000) as counts:
        first = torch.zeros(100, device=CUDA)
        assert counts.memory == torch.cuda.memory_allocated() == 400
        view = first[10:]
        assert counts.memory == 400  # a view takes none
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
            torch.zeros(200, device=CUDA)
        del first
        assert counts.memory == 400
        del view
        assert counts.memory == 0
        assert counts.peak == 400
        assert torch.cuda.mem_get_info() == (1_000, 1_000)


def test_activations_take_memory_until_the_backward_pass(counts: Counts) -> None:
    layer = nn.Linear(8, 8).to(CUDA)
    before = counts.memory
    output = layer(torch.ones(100, 8, device=CUDA)).exp().sum()
    assert counts.memory - before > 2 * 3200
    output.backward()
    del output
    assert counts.memory - before == before  # the gradients


def test_a_module_keeps_its_parameters_when_it_moves(counts: Counts) -> None:
    layer = nn.Linear(3, 2)
    weight = layer.weight
    layer.to(CUDA)
    assert layer.weight is weight
    assert isinstance(weight, nn.Parameter)
    assert weight.device == CUDA
    assert isinstance(nn.Parameter(weight.detach() * 2), ShamTensor)


def test_fused_adamw_equals_that_of_the_cpu_and_wants_its_state_on_the_device(counts: Counts) -> None:
    def train(device: torch.device) -> tuple[Tensor, torch.optim.AdamW]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        layer.to(device)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
        for _ in range(3):
            layer(torch.arange(6.0, device=device).reshape(2, 3)).square().sum().backward()
            nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return values(layer.weight), optimizer

    here, optimizer = train(CUDA)
    assert torch.equal(here, train(torch.device("cpu"))[0])
    state = next(iter(optimizer.state.values()))
    assert state["step"].device == CUDA
    state["step"] = state["step"].cpu()
    for parameter in optimizer.state:
        parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(RuntimeError, match="two devices"):
        optimizer.step()


def test_the_device_has_random_numbers_of_its_own(counts: Counts) -> None:
    def draw() -> list[float]:
        return values(torch.rand(4, device=CUDA)).tolist()

    torch.manual_seed(5)
    state, on_cpu = torch.cuda.get_rng_state(), torch.get_rng_state()
    first = draw()
    assert torch.equal(torch.get_rng_state(), on_cpu)
    assert draw() != first
    torch.cuda.set_rng_state(state)
    assert draw() == first
    torch.manual_seed(5)
    assert draw() == first


def test_nothing_stays_replaced() -> None:
    def replaced() -> tuple[object, ...]:
        return (
            torch.cuda.is_available,
            torch.tensor,
            torch.autocast,
            Tensor.pin_memory,
            threading.Thread._bootstrap_inner,
        )

    before = replaced()
    with pytest.raises(ValueError, match="some error"), sham_device():
        raise ValueError(f"some error, with a device: {torch.cuda.is_available()}")
    assert replaced() == before
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1, device="cuda")


@pytest.mark.parametrize(("window", "is_causal"), [((-1, -1), False), ((-1, 0), True), ((2, 3), False)])
def test_flash_attention_of_packed_texts_is_attention_text_by_text(
    counts: Counts, window: tuple[int, int], is_causal: bool
) -> None:
    torch.manual_seed(0)
    starts = [0, 3, 4, 9]
    states = [torch.randn(9, heads, 8, requires_grad=True) for heads in (4, 2, 2)]
    grad, expected = torch.randn(9, 4, 8), []
    for start, end in pairwise(starts):
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
        left, right = (size if size >= 0 else end for size in window)
        q, k, v = (one[start:end].transpose(0, 1) for one in states)
        one = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=(distance <= left) & (distance >= -right), enable_gqa=True
        )
        expected.append(one.transpose(0, 1))
    gradients = torch.autograd.grad(torch.cat(expected), states, grad)
    here = [one.detach().to(CUDA) for one in states]
    ends = torch.tensor(starts, dtype=torch.int32, device=CUDA)
    options = {"window_size_left": window[0], "window_size_right": window[1]}
    counts.reset()
    mixed, sums, seed, offset, _ = torch.ops.aten._flash_attention_forward(
        *here, ends, ends, 5, 5, 0.0, is_causal, False, **options
    )
    ours = torch.ops.aten._flash_attention_backward(
        grad.to(CUDA), *here, mixed, sums, ends, ends, 5, 5, 0.0, is_causal, seed, offset, **options
    )
    assert counts.launches.total() == 2
    torch.testing.assert_close(values(mixed), torch.cat(expected).detach())
    for one, other in zip(ours, gradients, strict=True):
        torch.testing.assert_close(values(one), other)


def test_bf16_is_refused_on_a_card_without_it() -> None:
    with sham_device(name="Tesla T4", capability=(7, 5)):
        assert choose_precision(None, CUDA) == choose_precision("fp32", CUDA) == "fp32"
        with pytest.raises(ConfigError) as raised:
            choose_precision("bf16", CUDA)
    assert str(raised.value) == (
        "precision: Tesla T4 has no bf16 (compute capability 7.5, bf16 needs 8.0); use fp32, or leave it out"
    )
    with sham_device():
        assert choose_precision(None, CUDA) == choose_precision("bf16", CUDA) == "bf16"
