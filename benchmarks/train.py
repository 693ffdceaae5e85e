"""Training steps: examples per second against sentence-transformers' trainer, on the same model, data and lengths.

Run: `python benchmarks/train.py [--json PATH] [--turns N] [--precision fp32]`. It trains MiniLM on SQuAD on a CPU with
64 queries per step, by InfoNCE: both with cached gradients (`CachedMultipleNegativesRankingLoss`, mini-batches by
number and by tokens), and both without (`MultipleNegativesRankingLoss`), which is faster where the memory allows it.
raytriever trains without dropout, which is its default; sentence-transformers with MiniLM's 0.1, and once without.
Each turn is a process of one thread that trains a few steps and reports the processor time of all but the first. They
alternate, so other load on the machine affects all. bf16 is measured where the processor multiplies it. `--help` ends
with the environment of AVX2 alone.

`train_profile.py` shows where these steps spend their time; `gpu.py` measures training steps on a GPU."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ends import End, at_most, parser, report, reported
from grad_cache import take_step

if TYPE_CHECKING:
    from raytriever.models.retriever import Retriever
    from raytriever.training.batch_loader import Batch
    from raytriever.training.parallel.strategies import Strategy

SQUAD = Path(__file__).parent.parent.parent / "shared" / "data" / "squad"
BATCH, LENGTH = 64, 128
MINI_BATCH = 32  # of sentence-transformers; our parts are cut by tokens, one and a half such mini-batches at a time
TOKENS = 3 * MINI_BATCH * LENGTH // 2
STEPS = 3
WANTED = {"fp32": 1.3, "bf16": 2.3}
# Ways of the two libraries, and those of ours that each of theirs is compared with.
OURS = ("ours, cached", "ours, whole")
THEIRS = {
    "theirs, cached": "ours, cached",
    "theirs, cached by tokens": "ours, cached",
    "theirs, whole": "ours, whole",
    "theirs, cached, no dropout": "ours, cached",
}


def pairs(dataset: Path, count: int) -> list[tuple[str, str]]:
    """Return the first training queries with their paragraphs."""
    from raytriever.data.prepare.open_dataset import open_dataset

    opened = open_dataset(dataset, ["train"])
    positives = opened.positives("train")
    return [
        (opened.queries.texts[int(positives.queries[index])], opened.passage_text(int(positives.of(index)[0])))
        for index in range(0, len(positives), max(1, len(positives) // count))
    ][:count]


@contextmanager
def training(
    precision: str, dataset: Path, steps: int, caches: bool = True
) -> Iterator[tuple[Strategy, Iterator[Batch], Retriever]]:
    """Yield the strategy that trains MiniLM, batches that another thread prepares, and MiniLM."""
    import torch

    from raytriever.data.data_settings import DataConfig
    from raytriever.losses.build_loss import build_loss
    from raytriever.losses.distributed import ALONE
    from raytriever.losses.loss_settings import LossConfig
    from raytriever.models.encoder import set_dropout
    from raytriever.models.model_settings import ModelConfig
    from raytriever.models.retriever import load_retriever
    from raytriever.retrieval.encoding.shard_encoder import tokenization_of
    from raytriever.training.batch_loader import Prefetcher
    from raytriever.training.loop import build_strategy
    from raytriever.training.optimizer_and_schedule import build_optimizer
    from raytriever.training.parallel.objective import Objective
    from raytriever.training.training_data import TrainingData
    from raytriever.training.training_settings import TrainingConfig

    retriever = load_retriever(ModelConfig("minilm", query_length=LENGTH, passage_length=LENGTH))
    config = DataConfig(dataset=str(dataset), dev_split="dev")
    source = TrainingData.open(config.datasets, config, tokenization_of(retriever), BATCH, seed=0).train(None)
    set_dropout(retriever, TrainingConfig().dropout)
    loss = build_loss(LossConfig(loss="infonce", temperature=0.05))
    objective = Objective(retriever, loss, precision)
    device = torch.device("cpu")
    strategy = build_strategy(TrainingConfig(), objective, build_optimizer(objective, 2e-5, 0.01), ALONE, device)
    retriever.train()
    chunk = TOKENS if caches else None
    with Prefetcher(lambda step: source.batch(step, retriever, ALONE, chunk=chunk), range(steps)) as batches:
        yield strategy, iter(batches), retriever


def ours(precision: str, dataset: Path, way: str) -> list[float]:
    """Return the seconds of each step of our loop: batch, gradients, update."""
    times = []
    with training(precision, dataset, STEPS + 1, caches="cached" in way) as (strategy, batches, _):
        began = time.process_time()
        for step, batch in enumerate(batches):
            take_step(strategy, batch, step)
            times.append(time.process_time() - began)
            began = time.process_time()
    return times


def theirs(precision: str, dataset: Path, way: str) -> list[float]:
    """Return the seconds of each step of sentence-transformers' trainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss, MultipleNegativesRankingLoss
    from torch.nn import Dropout
    from transformers import TrainerCallback

    from raytriever.models.resolve_model import resolve_model

    model = SentenceTransformer(str(resolve_model("minilm", None)), device="cpu")
    model.max_seq_length = LENGTH
    for module in model.modules():
        if "no dropout" in way and isinstance(module, Dropout):
            module.p = 0.0
    rows = pairs(dataset, BATCH * (STEPS + 1))
    columns = Dataset.from_dict({"anchor": [row[0] for row in rows], "positive": [row[1] for row in rows]})
    stamps: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *arguments: Any, **more: Any) -> None:
            if not stamps:
                stamps.append(time.process_time())

        def on_step_end(self, *arguments: Any, **more: Any) -> None:
            stamps.append(time.process_time())

    settings = SentenceTransformerTrainingArguments(
        output_dir=os.environ.get("TMPDIR", "/tmp"),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS + 1,
        learning_rate=2e-5,
        bf16=precision == "bf16",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    cut = {"mini_batch_num_tokens": TOKENS} if "tokens" in way else {"mini_batch_size": MINI_BATCH}
    if way.endswith("whole"):
        loss = MultipleNegativesRankingLoss(model, scale=20.0)
    else:
        loss = CachedMultipleNegativesRankingLoss(model, scale=20.0, **cut)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=settings,
        train_dataset=columns,
        loss=loss,
        callbacks=[Clock()],
    )
    trainer.train()
    return [after - before for before, after in itertools.pairwise(stamps)]


def turn(who: str, precision: str, dataset: Path) -> dict[str, float]:
    """Return the examples per processor second after the first step, and the peak memory; for one process."""
    command = [sys.executable, __file__, "--turn", who, "--precision", precision, "--dataset", str(dataset)]
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compared(dataset: Path, count: int, precisions: list[str]) -> dict[str, End]:
    """Compare raytriever with sentence-transformers in these precisions."""
    results: dict[str, End] = {}
    for precision in precisions:
        turns: dict[str, list[dict[str, float]]] = {way: [] for way in (*OURS, *THEIRS)}
        for _ in range(count):
            for way, measured in turns.items():
                measured.append(turn(way, precision, dataset))
        memory = {way: median(item["memory"] for item in measured) for way, measured in turns.items()}
        for way, measured in turns.items():
            speed = median(item["speed"] for item in measured)
            results[f"{precision}: {way}, examples a processor second"] = reported(speed)
            results[f"{precision}: {way}, peak memory (MB)"] = reported(memory[way])
        for way, value in THEIRS.items():
            pairs_of_turns = zip(turns[value], turns[way], strict=True)
            ratio = median(mine["speed"] / other["speed"] for mine, other in pairs_of_turns)
            name, wanted = f"{precision}: {value} / {way}", WANTED[precision]
            is_target = way == "theirs, cached"
            target = f"at least {wanted}" if is_target else "reported"
            results[f"{name}, examples a second"] = End(ratio, target, ratio >= wanted or not is_target)
            less = memory[value] / memory[way]
            results[f"{name}, peak memory"] = at_most(less, 1)
    return results


def main() -> None:
    """Measure, or run one turn."""
    own = parser(__doc__ or "")
    own.add_argument("--dataset", type=Path, default=SQUAD, metavar="PATH", help="with a train split")
    own.add_argument("--turns", type=int, default=2, metavar="N", help="of each")
    own.add_argument("--turn", choices=(*OURS, *THEIRS), help=argparse.SUPPRESS)
    own.add_argument("--precision", choices=("fp32", "bf16"), help="this one alone")
    arguments = own.parse_args()
    if arguments.turn:
        measure = ours if arguments.turn in OURS else theirs
        times = measure(arguments.precision or "fp32", arguments.dataset, arguments.turn)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"speed": BATCH / median(times[1:]), "memory": peak}))
        return
    import torch

    from raytriever.models.device_and_precision import choose_precision

    own_precision = choose_precision(None, torch.device("cpu"))
    precisions = [arguments.precision] if arguments.precision else list(dict.fromkeys(["fp32", own_precision]))
    report("training steps", compared(arguments.dataset, arguments.turns, precisions), arguments.json)


if __name__ == "__main__":
    main()
