"""Suggestions for unknown flags and stages: names of other programs, and names that are easily mistyped.

One table serves all stages. A suggestion is made only if the stage has every flag in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from raytriever.options import did_you_mean

# Our flag, and what other trainers, libraries and benchmarks call it. The first that the stage has is suggested.
_FLAGS = {
    "--learning-rate": "lr learningrate",
    "--model": "model-name-or-path model-name model-path pretrained-model encoder backbone checkpoint models",
    "--epochs": "num-train-epochs num-epochs epoch",
    "--max-steps": "steps num-steps train-steps",
    "--batch-size": "batchsize bs train-batch-size",
    "--output": "output-dir output-path output-folder out save-dir run-dir",
    "--dataset": "train-data train-dataset train-file train-path dataset-name dataset-path data data-dir data-path "
    "corpus corpus-path datasets",
    "--datasets": "dataset-name dataset-path data data-dir data-path corpus corpus-path dataset tasks task",
    "--suite": "benchmark",
    "--temperature": "tau temp",
    "--seed": "random-seed",
    "--query-length": "query-max-len query-max-length q-max-len",
    "--passage-length": "passage-max-len passage-max-length p-max-len",
    "--query-prompt": "query-instruction query-instruction-for-retrieval",
    "--dataset-prompts": "prompts",
    "--query-prompt-name": "prompt-name",
    "--passage-prompt": "passage-instruction-for-retrieval document-prompt doc-prefix",
    "--precision": "dtype",
    "--warmup-steps": "warmup num-warmup-steps",
    "--weight-decay": "wd",
    "--max-grad-norm": "clip-grad",
    "--checkpoint-steps": "save-steps",
    "--keep": "save-total-limit",
    "--eval-steps": "evaluation-steps eval-every",
    "--best-metric": "metric-for-best-model",
    "--patience": "early-stopping-patience",
    "--activation-checkpointing": "gradient-checkpointing",
    "--fresh": "overwrite-output-dir overwrite force",
    "--yes": "force",
    "--loss": "loss-type loss-name loss-fn",
    "--num-workers": "num-gpus gpus workers nproc-per-node num-processes",
    "--actors": "workers",
    "--grad-cache-chunk": "mini-batch-size gc-q-chunk-size gc-p-chunk-size",
    "--negatives-table": "negatives",
    "--negatives-per-query": "num-negatives hard-negatives",
    "--lora-rank": "lora lora-r",
    "--matryoshka-dims": "matryoshka",
    "--pooling": "pooling-method pooling-mode sentence-pooling-method",
    "--run-name": "name experiment-name",
    "--top": "top-k topk k",
    "--depth": "top-k topk k",
    "--num-negatives": "top-k topk",
    "--split": "eval-split",
    "--index": "index-type",
    "--trials": "num-samples n-trials",
    "--searcher": "search-alg",
    "--search-space": "param-space",
    "--trials-at-once": "max-concurrent-trials",
    "--formats": "export-format",
    "--tracker": "report-to trackers logger",
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
    """Return a suggestion for an unknown flag, with underscores or dashes."""
    dashed = flag.replace("_", "-").lower()
    if dashed in known:
        return f"did you mean {dashed!r}?"
    for ours, others in _FLAGS.items():
        if ours in known and dashed.removeprefix("--") in others.split():
            return f"did you mean {ours!r}?"
    advice = _ADVICE.get(dashed)
    if advice is not None and all(named in known for named in re.findall(r"--[a-z-]+", advice) if named != "--version"):
        return advice
    return did_you_mean(dashed, [one for one in known if one not in ("-h", "--help", "--help-all")])


def suggest_for_stage(word: str, stages: Collection[str]) -> str:
    """Return a suggestion for an unknown stage."""
    ours = _STAGES.get(word.lower())
    return f"did you mean {ours!r}?" if ours is not None else did_you_mean(word.lower(), stages)
