"""Suggestions for unknown flags and commands: names of other programs or of earlier versions, and mistyped names.

One table serves all commands. A suggestion appears only if the command has every flag that it names."""

from __future__ import annotations

import re
from collections.abc import Collection

from raytriever.core.unknown_names import did_you_mean

# Our flag -> its names in other trainers, libraries and benchmarks. The first match that the command has is suggested.
_FLAGS = {
    "--learning-rate": "lr",
    "--model": "model-name-or-path model-name",
    "--epochs": "num-train-epochs epoch",
    "--output": "output-dir",
    "--dataset": "dataset-name train-data",
    "--datasets": "dataset-name dataset tasks",
    "--temperature": "tau",
    "--num-workers": "num-gpus",
    "--checkpoint-steps": "save-steps",
    "--fresh": "overwrite-output-dir force",
    "--top": "top-k",
    "--num-negatives": "top-k",
}
# Advice for flags without a counterpart.
_ADVICE = {
    "nothing is needed: the same command continues an interrupted run": "resume resume-from-checkpoint",
    "give --tracker wandb": "wandb",
    (
        "give the whole batch as --batch-size and what fits into memory as --grad-cache-chunk: accumulated "
        "small batches would lose each other's negatives"
    ): "gradient-accumulation-steps mini-batch-size",
    "give --batch-size, the number of queries of a step on all workers together": "per-device-train-batch-size",
    "give --query-length and --passage-length, in tokens": "max-seq-length max-length",
    "give --precision bf16": "fp16 bf16",
    "leave it out: a GPU is used if there is one; CUDA_VISIBLE_DEVICES chooses one of several GPUs": "device",
}
# Our command -> its names in other programs.
_COMMANDS = {
    "evaluate": "eval test",
    "train": "fit finetune",
    "encode": "embed",
    "score": "rerank",
    "tune": "sweep",
    "runs list": "list ls status",
}


# Command or flag of an earlier version -> what to do instead.
_REMOVED = {
    "plan": "see docs/explanation/scale.md; `raytriever train --dry-run` computes the memory of a training",
    "launch": "give `ray start --head` and `mlflow server`; see docs/tutorials/cluster.md",
    "submit": "give `ray job submit --working-dir . -- python jobs/COMMAND.py ...`; see docs/how-to/submit-a-job.md",
    "study ood": "give `python studies/gap.py` in a checkout; see docs/how-to/build-an-index.md",
    "--scale": "give a study file, such as studies/mw-in-domain.yaml in a checkout; see docs/how-to/run-a-study.md",
    "runs show": "`raytriever runs list RUN` prints the step of a run and the command that continues it",
    "--soft-labels": "use --guide, or --loss kl or --loss margin-mse with --teacher",
    "--ranks": "give --range-min and --range-max",
    "--min-delta": "leave it out: any improvement of --best-metric, however small, resets --patience",
    "--eval-behind": "leave it out: training waits while two validations are unfinished",
    "--checkpoint-minutes": "a checkpoint is written every 10 minutes; give --checkpoint-steps for more",
    "--refresh-ranks": "give --refresh-relative-margin",
    "--refresh-max-score": "give --refresh-relative-margin",
    "--refresh-absolute-margin": "give --refresh-relative-margin",
    "--effort": "give --nprobe (ivf, ivfpq) or --ef-search (graphs)",
    "--degree": "give --m",
    "--build-beam": "give --ef-construction",
    "--test-share": "give --test-fraction",
    "--dev-share": "give --dev-fraction",
    "--gather-precision": "embeddings are sent in fp32; --loss-precision sets the precision of the loss's products",
}


def removed(word: str) -> str | None:
    """Return what to do instead of a command or a flag that was removed, or None for any other word."""
    return _REMOVED.get(word)


def suggest_for_flag(flag: str, known: Collection[str]) -> str:
    """Return a suggestion for an unknown flag, which may have underscores instead of dashes."""
    dashed = flag.replace("_", "-").lower()
    if dashed in known:
        return f"did you mean {dashed!r}?"
    for ours, others in _FLAGS.items():
        if ours in known and dashed.removeprefix("--") in others.split():
            return f"did you mean {ours!r}?"
    for advice, others in _ADVICE.items():
        named = set(re.findall(r"--[a-z-]+", advice))
        if dashed.removeprefix("--") in others.split() and named <= set(known):
            return advice
    return did_you_mean(dashed, [name for name in known if name not in ("-h", "--help", "--help-all")])


def suggest_for_command(word: str, commands: Collection[str]) -> str:
    """Return a suggestion for an unknown command."""
    ours = next((ours for ours, others in _COMMANDS.items() if word.lower() in others.split()), None)
    return f"did you mean {ours!r}?" if ours is not None else did_you_mean(word.lower(), commands)
