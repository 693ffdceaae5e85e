"""Base encoder: a BERT of MiniLM's size, trained from random weights by masked-language modelling on given texts.

Run: `python benchmarks/base_encoder.py data/squad data/snli#dev notes.txt --output data/base-encoder --steps 4000`. A
source is a data set of any known format, or a text file (`.txt`, `.txt.gz`) with one text a line. Of a data set only
the texts of one split are read, `train` or the one after `#`: its queries, the documents judged for them and their hard
negatives, without the queries and documents of every other split. 2 % of the texts are held out by their hash.

`OUTPUT/encoder` is a plain encoder, as `--model` reads it: mean pooling and no learnt projection. Its `figures.json`
has the sources and, by step, tokens, seconds, training loss, and loss and accuracy at the masked tokens of held-out
texts. `OUTPUT/checkpoint.pt` continues the training: the same command after an interruption, or with more `--steps`,
whose learning rate is then that of the longer schedule. `--minutes` ends a call earlier.

As in BERT (Devlin et al., 2019), with the changes for short trainings of Izsak et al. (2021, arXiv:2104.07705): short
sequences without padding, no next sentence, no dropout. 20 % of the tokens are masked (Wettig et al., 2023,
arXiv:2202.08005), and the product with the vocabulary is computed for these only. Its bias begins as the logarithm of
the tokens' frequencies. Otherwise the first steps learn these by making all states equal, and with a learning rate of
0.001 they stayed so."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ends import machine
from raytriever.core.errors import ConfigError, UserError, disk_errors
from raytriever.core.store.commit import committed_directory, one_writer
from raytriever.models.device_and_precision import autocast, choose_precision, default_device
from raytriever.models.directory.hub_or_local import embedded_minilm
from raytriever.models.directory.model_files import quiet_transformers
from raytriever.training.optimizer_and_schedule import build_optimizer
from text_sources import is_held_out, pack, read_source

ENCODER, FIGURES, CHECKPOINT = "encoder", "figures.json", "checkpoint.pt"
MASKED, MEASURED = 0.2, 8_192  # fraction of the tokens; held-out tokens that are measured
MINILM_SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
IGNORED = -100  # label of a token that is not masked


@dataclass(frozen=True)
class Plan:
    """Settings of a training.

    Args:
        steps: length of the schedule; a larger number continues a training.
        seed: seed of the first weights, the order and the masks.
        length: tokens of a sequence, and positions of the encoder.
        tokens: tokens of a step.
        learning_rate: peak; it rises over the first 10 % of the steps and falls linearly to 0.
        every: steps between two measurements, each with a checkpoint.
    """

    steps: int
    seed: int = 0
    length: int = 128
    tokens: int = 2_048
    learning_rate: float = 5e-4
    every: int = 50

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return max(1, self.tokens // self.length)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        rise = max(1, self.steps // 10)
        return self.learning_rate * min((step + 1) / rise, (self.steps - step) / max(1, self.steps - rise))


@dataclass
class Progress:
    """Measurements of a training, over all calls; `seconds` and `processor_seconds` do not count loading."""

    step: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    points: list[dict[str, float]] = field(default_factory=list)


class MaskedTraining:
    """Training of a model at masked tokens; every step is a function of the seed and its number.

    Args:
        model: `BertForMaskedLM`.
        tokenizer: tokenizer of the sequences.
        sequences, held_out: sequences to train on and to measure on, `[sequences, length]`.
        plan: settings.
    """

    def __init__(self, model: Any, tokenizer: Any, sequences: Tensor, held_out: Tensor, plan: Plan) -> None:
        from transformers import DataCollatorForLanguageModeling

        self.device = default_device()
        self.precision = choose_precision(None, self.device)
        self.model = model.to(self.device)
        self.optimizer = build_optimizer(self.model, plan.learning_rate, 0.01)
        self.plan, self.sequences, self.held_out = plan, sequences, held_out[: MEASURED // plan.length]
        self.progress = Progress()
        self._tokenizer = tokenizer
        self._special = torch.tensor(tokenizer.all_special_ids)
        self._collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASKED)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything but the length that decides the weights."""
        digest = hashlib.sha256(self.sequences.numpy().tobytes() + self.held_out.numpy().tobytes()).hexdigest()
        settings = {name: value for name, value in asdict(self.plan).items() if name not in ("steps", "every")}
        return {
            "texts": digest,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            **settings,
        }

    def train(self, output: Path, facts: Mapping[str, Any], log: Callable[[str], None], minutes: float) -> None:
        """Train to the end of the schedule, or for some minutes; measure and save on the way and at the end.

        Args:
            output: folder of the checkpoint, the encoder and the figures.
            facts: contents of `figures.json` besides the measurements.
            log: called with a line for each measurement.
            minutes: bound of this call.
        """
        began, losses = time.monotonic(), []
        progress = self.progress
        while progress.step < self.plan.steps:
            start, start_processor = time.monotonic(), time.process_time()
            losses.append(self.step(progress.step))
            progress.step += 1
            progress.seconds += time.monotonic() - start
            progress.processor_seconds += time.process_time() - start_processor
            is_over = time.monotonic() - began >= 60 * minutes
            if progress.step % self.plan.every == 0 or progress.step == self.plan.steps or is_over:
                progress.points.append(self.measure() | {"training_loss": float(np.mean(losses))})
                losses.clear()
                self.save(output, facts)
                log(_line(progress.points[-1], self.plan.steps))
            if is_over:
                break

    def step(self, step: int) -> float:
        """Make one step, and return its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(step)
        self.model.train()
        loss, _ = self._loss(self.sequences[self._rows(step)], 1 + self.plan.seed * 2**32 + step)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return loss and accuracy at masked tokens of held-out texts; the masks are always the same."""
        self.model.eval()
        blocks = [self._loss(block, number) for number, block in enumerate(self.held_out.split(self.plan.batch))]
        right = torch.cat([item for _, item in blocks])
        loss = sum(float(loss) * len(item) for loss, item in blocks) / len(right)
        done = self.progress
        return {
            "step": done.step,
            "tokens": done.step * self.plan.batch * self.plan.length,
            "seconds": round(done.seconds, 1),
            "processor_seconds": round(done.processor_seconds, 1),
            "loss": loss,
            "accuracy": float(right.float().mean()),
        }

    def _rows(self, step: int) -> Tensor:
        """Return the sequences of a step. Each epoch has its own order, and leaves out the rest of a batch."""
        batch = min(self.plan.batch, len(self.sequences))
        epoch, at = divmod(step, len(self.sequences) // batch)
        order = torch.Generator().manual_seed(self.plan.seed * 2**32 + epoch)
        return torch.randperm(len(self.sequences), generator=order)[at * batch : (at + 1) * batch]

    def _loss(self, sequences: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return the mean loss at the masked tokens, and whether each of them has the highest score."""
        torch.manual_seed(seed)
        is_special = torch.isin(sequences, self._special)
        tokens, labels = self._collator.torch_mask_tokens(sequences.long(), special_tokens_mask=is_special)
        tokens, labels = tokens.to(self.device), labels.to(self.device)
        is_masked = labels != IGNORED
        with autocast(self.precision, self.device):
            hidden = self.model.bert(tokens).last_hidden_state[is_masked]
            scores = self.model.cls(hidden).float()
        expected = labels[is_masked]
        return nn.functional.cross_entropy(scores, expected), scores.detach().argmax(1) == expected

    def save(self, output: Path, facts: Mapping[str, Any]) -> None:
        """Write checkpoint, encoder and figures, each whole or not at all."""
        state = {
            "identity": self.identity,
            "progress": asdict(self.progress),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        temporary = output / f"{CHECKPOINT}.tmp"
        with disk_errors(output):
            output.mkdir(parents=True, exist_ok=True)
            torch.save(state, temporary)
            temporary.replace(output / CHECKPOINT)
        plan = asdict(self.plan) | {"masked": MASKED, "precision": self.precision}
        content = {**facts, "plan": plan, "dataset_evaluation": self.progress.points}
        with committed_directory(output / ENCODER, replace=True) as folder, quiet_transformers():
            self.model.bert.save_pretrained(folder)
            self._tokenizer.save_pretrained(folder)
            (folder / FIGURES).write_text(json.dumps(content, indent=1) + "\n")

    def resume(self, output: Path) -> None:
        """Continue from the checkpoint of an earlier call, if there is one.

        Raises:
            ConfigError: it belongs to other texts, another seed or other sizes, or has more steps than the plan.
        """
        path = output / CHECKPOINT
        if not path.is_file():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        changed = sorted(key for key, value in self.identity.items() if state["identity"].get(key) != value)
        if changed:
            what = f"holds a training with other settings ({', '.join(changed)})"
            raise ConfigError(what, f"--output {output}", "give another directory")
        if state["progress"]["step"] > self.plan.steps:
            what = f"{self.plan.steps} are fewer than the {state['progress']['step']} that are done"
            raise ConfigError(what, "--steps", "give more, or another --output")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])


def _line(point: Mapping[str, float], steps: int) -> str:
    return (
        f"step {point['step']:,.0f} of {steps:,}: {point['tokens']:,.0f} tokens in {point['seconds']:,.0f} s, training "
        f"loss {point['training_loss']:.3f}, held-out loss {point['loss']:.3f}, accuracy {point['accuracy']:.3f}"
    )


def new_model(plan: Plan, tokenizer_folder: Path | None = None, **sizes: int) -> tuple[Any, Any]:
    """Return a BERT with random weights, by default of MiniLM's sizes, and a tokenizer, by default MiniLM's."""
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder or embedded_minilm(), trust_remote_code=False)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": plan.length, **MINILM_SIZES, **sizes}
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
    tokenizer.model_max_length = plan.length
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    torch.manual_seed(plan.seed)
    return BertForMaskedLM(config), tokenizer


def begin_with_frequencies(model: Any, sequences: Tensor) -> None:
    """Set the bias of the output to the logarithm of the tokens' frequencies."""
    bias = model.get_output_embeddings().bias
    counts = torch.bincount(sequences.flatten(), minlength=len(bias)) + 1
    with torch.no_grad():
        bias.copy_((counts / counts.sum()).log())


def prepare(
    sources: Sequence[str], plan: Plan, tokenizer_folder: Path | None = None, **sizes: int
) -> tuple[MaskedTraining, dict[str, Any]]:
    """Return the training on some sources, and facts about its texts."""
    model, tokenizer = new_model(plan, tokenizer_folder, **sizes)
    texts, facts = list[str](), []
    for source in sources:
        own = read_source(source)
        facts.append({"source": Path(source).name, "texts": len(own)})
        texts += own
    parts = [[text for text in texts if is_held_out(text) == side] for side in (False, True)]
    sequences, held_out = (pack(part, tokenizer, plan.length) for part in parts)
    begin_with_frequencies(model, sequences)
    about = {
        "machine": machine(),
        "sources": facts,
        "texts": {"trained": len(parts[0]), "held_out": len(parts[1])},
        "tokens": {"trained": sequences.numel(), "metrics": held_out[: MEASURED // plan.length].numel()},
    }
    return MaskedTraining(model, tokenizer, sequences, held_out, plan), about


def main() -> None:
    """Read the texts, train, print a line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="data set, PATH or PATH#SPLIT, or a text file")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write to")
    parser.add_argument("--steps", type=int, default=4000, help="length of the training (default: 4000)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end this call earlier")
    parser.add_argument("--length", type=int, default=128, help="longest text of the encoder, in tokens (default: 128)")
    parser.add_argument("--tokens", type=int, default=2_048, help="tokens of a step (default: 2048)")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="a tokenizer (default: that of all-MiniLM-L6-v2)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and masks (default: 0)")
    arguments = parser.parse_args()
    try:
        with one_writer(arguments.output):
            plan = Plan(arguments.steps, arguments.seed, arguments.length, arguments.tokens)
            training, facts = prepare(arguments.sources, plan, arguments.tokenizer)
            training.resume(arguments.output)
            print(json.dumps(facts), flush=True)
            training.train(arguments.output, facts, lambda line: print(line, flush=True), arguments.minutes)
    except UserError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    print(arguments.output / ENCODER)


if __name__ == "__main__":
    main()
