"""Suggestions for unknown flags and stages: names of other programs, and names that are easily mistyped.

One table serves all stages. A suggestion is made only if the stage has every flag in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from raytriever.options import did_you_mean

# Flag of another trainer, library or benchmark: our flags, the first that the stage has is suggested.
_FLAGS = {
    "--lr": "--learning-rate",
    "--learningrate": "--learning-rate",
    "--model-name-or-path": "--model",
    "--model-name": "--model",
    "--model-path": "--model",
    "--pretrained-model": "--model",
    "--encoder": "--model",
    "--backbone": "--model",
    "--checkpoint": "--model",
    "--num-train-epochs": "--epochs",
    "--num-epochs": "--epochs",
    "--epoch": "--epochs",
    "--steps": "--max-steps",
    "--num-steps": "--max-steps",
    "--train-steps": "--max-steps",
    "--batchsize": "--batch-size",
    "--bs": "--batch-size",
    "--train-batch-size": "--batch-size",
    "--output-dir": "--output",
    "--output-path": "--output",
    "--output-folder": "--output",
    "--out": "--output",
    "--save-dir": "--output",
    "--run-dir": "--output",
    "--train-data": "--dataset",
    "--train-dataset": "--dataset",
    "--train-file": "--dataset",
    "--train-path": "--dataset",
    "--dataset-name": "--dataset --datasets",
    "--dataset-path": "--dataset --datasets",
    "--data": "--dataset --datasets",
    "--data-dir": "--dataset --datasets",
    "--data-path": "--dataset --datasets",
    "--corpus": "--dataset --datasets",
    "--corpus-path": "--dataset --datasets",
    "--dataset": "--datasets",
    "--datasets": "--dataset",
    "--tasks": "--datasets",
    "--task": "--datasets",
    "--benchmark": "--suite",
    "--models": "--model",
    "--tau": "--temperature",
    "--temp": "--temperature",
    "--random-seed": "--seed",
    "--query-max-len": "--query-length",
    "--query-max-length": "--query-length",
    "--q-max-len": "--query-length",
    "--passage-max-len": "--passage-length",
    "--passage-max-length": "--passage-length",
    "--p-max-len": "--passage-length",
    "--query-instruction": "--query-prompt",
    "--prompts": "--dataset-prompts",
    "--prompt-name": "--query-prompt-name",
    "--query-instruction-for-retrieval": "--query-prompt",
    "--passage-instruction-for-retrieval": "--passage-prompt",
    "--document-prompt": "--passage-prompt",
    "--doc-prefix": "--passage-prompt",
    "--dtype": "--precision",
    "--warmup": "--warmup-steps",
    "--num-warmup-steps": "--warmup-steps",
    "--wd": "--weight-decay",
    "--clip-grad": "--max-grad-norm",
    "--save-steps": "--checkpoint-steps",
    "--save-total-limit": "--keep",
    "--evaluation-steps": "--eval-steps",
    "--eval-every": "--eval-steps",
    "--metric-for-best-model": "--best-metric",
    "--early-stopping-patience": "--patience",
    "--gradient-checkpointing": "--activation-checkpointing",
    "--overwrite-output-dir": "--fresh",
    "--overwrite": "--fresh",
    "--force": "--fresh --yes",
    "--loss-type": "--loss",
    "--loss-name": "--loss",
    "--loss-fn": "--loss",
    "--num-gpus": "--num-workers",
    "--gpus": "--num-workers",
    "--workers": "--num-workers --actors",
    "--nproc-per-node": "--num-workers",
    "--num-processes": "--num-workers",
    "--mini-batch-size": "--grad-cache-chunk",
    "--gc-q-chunk-size": "--grad-cache-chunk",
    "--gc-p-chunk-size": "--grad-cache-chunk",
    "--negatives": "--negatives-table",
    "--num-negatives": "--negatives-per-query",
    "--hard-negatives": "--negatives-per-query",
    "--lora": "--lora-rank",
    "--lora-r": "--lora-rank",
    "--matryoshka": "--matryoshka-dims",
    "--pooling-method": "--pooling",
    "--pooling-mode": "--pooling",
    "--sentence-pooling-method": "--pooling",
    "--name": "--run-name",
    "--experiment-name": "--run-name",
    "--top-k": "--top --depth --num-negatives",
    "--topk": "--top --depth --num-negatives",
    "--k": "--top --depth",
    "--eval-split": "--split",
    "--index-type": "--index",
    "--num-samples": "--trials",
    "--n-trials": "--trials",
    "--search-alg": "--searcher",
    "--param-space": "--search-space",
    "--max-concurrent-trials": "--trials-at-once",
    "--export-format": "--formats",
    "--report-to": "--tracker",
    "--trackers": "--tracker",
    "--logger": "--tracker",
}
_RESUME = "nothing is needed: the same command continues an interrupted run"
# Flag without a counterpart: advice.
_ADVICE = {
    "--resume": _RESUME,
    "--resume-from-checkpoint": _RESUME,
    "--continue": _RESUME,
    "--wandb": "give --tracker wandb",
    "--wandb-project": "give --tracker wandb, and set the environment variable WANDB_PROJECT",
    "--use-wandb": "give --tracker wandb",
    "--tensorboard": "give --tracker tensorboard",
    "--logging-steps": "nothing is needed: every step is recorded",
    "--gradient-accumulation-steps": "give the whole batch as --batch-size and what fits into memory as "
    "--grad-cache-chunk: accumulated small batches would lose each other's negatives",
    "--per-device-train-batch-size": "give --batch-size, which counts the queries of a step over all workers",
    "--per-device-eval-batch-size": "nothing is needed: texts are encoded in batches that fit the device",
    "--eval-batch-size": "nothing is needed: texts are encoded in batches that fit the device",
    "--max-seq-length": "give --query-length and --passage-length, in tokens",
    "--max-length": "give --query-length and --passage-length, in tokens",
    "--train-n-passages": "give --negatives-per-query, one less than the passages of a query",
    "--train-group-size": "give --negatives-per-query, one less than the passages of a query",
    "--bf16": "give --precision bf16",
    "--fp16": "give --precision bf16, which needs no loss scaling",
    "--mixed-precision": "give --precision bf16",
    "--warmup-ratio": "give --warmup-steps, a number of steps",
    "--deepspeed": "give --strategy zero1, zero2 or zero3",
    "--fsdp": "give --strategy fsdp2, which shards weights, gradients and optimiser",
    "--negatives-x-device": "nothing is needed: negatives are gathered from all workers",
    "--negatives-cross-device": "nothing is needed: negatives are gathered from all workers",
    "--normalize": "give --similarity cosine, which normalises embeddings",
    "--normalize-embeddings": "give --similarity cosine, which normalises embeddings",
    "--normlized": "give --similarity cosine, which normalises embeddings",
    "--device": "nothing is needed: a GPU is used where there is one; CUDA_VISIBLE_DEVICES chooses",
    "--ray-address": "set the environment variable RAY_ADDRESS",
    "--query": "give the query without a flag",
    "--version": "`raytriever --version` prints it",
}
_STAGES = {
    "eval": "evaluate",
    "test": "evaluate",
    "benchmark": "evaluate",
    "beir": "evaluate",
    "mteb": "evaluate",
    "fit": "train",
    "finetune": "train",
    "fine-tune": "train",
    "embed": "encode",
    "query": "search",
    "retrieve": "search",
    "rerank": "score",
    "sweep": "tune",
    "hpo": "tune",
    "tokenize": "prepare",
    "tokenise": "prepare",
    "preprocess": "prepare",
    "start": "launch",
    "list": "runs list",
    "ls": "runs list",
    "status": "runs list",
    "clean": "runs clean",
    "prune": "cache prune",
    "check": "doctor",
    "resume": "train",
    "diff": "compare",
    "report": "compare",
}


def suggest_for_flag(flag: str, known: Collection[str]) -> str:
    """Return a suggestion for an unknown flag.

    Args:
        flag: the flag, with underscores or dashes.
    """
    dashed = flag.replace("_", "-").lower()
    if dashed in known:
        return f"did you mean {dashed!r}?"
    for ours in _FLAGS.get(dashed, "").split():
        if ours in known:
            return f"did you mean {ours!r}?"
    advice = _ADVICE.get(dashed)
    if advice is not None and all(named in known for named in re.findall(r"--[a-z-]+", advice) if named != "--version"):
        return advice
    return did_you_mean(dashed, [one for one in known if one not in ("-h", "--help", "--help-all")])


def suggest_for_stage(word: str, stages: Collection[str]) -> str:
    """Return a suggestion for an unknown stage."""
    ours = _STAGES.get(word.lower())
    return f"did you mean {ours!r}?" if ours is not None else did_you_mean(word.lower(), stages)
