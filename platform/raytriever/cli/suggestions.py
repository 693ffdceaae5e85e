"""Suggestions for unknown flags and stages: names of other programs, of earlier versions, and mistyped ones.

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
# Advice for flags without a counterpart.
_ADVICE = {
    "nothing is needed: the same command continues an interrupted run": "resume resume-from-checkpoint continue",
    "give --tracker wandb": "wandb use-wandb",
    "give --tracker wandb, and set the environment variable WANDB_PROJECT": "wandb-project",
    "give --tracker tensorboard": "tensorboard",
    "nothing is needed: every step is recorded": "logging-steps",
    (
        "give the whole batch as --batch-size and what fits into memory as --grad-cache-chunk: accumulated "
        "small batches would lose each other's negatives"
    ): "gradient-accumulation-steps",
    "give --batch-size, which counts the queries of a step over all workers": "per-device-train-batch-size",
    "nothing is needed: texts are encoded in batches that fit the device": "per-device-eval-batch-size eval-batch-size",
    "give --query-length and --passage-length, in tokens": "max-seq-length max-length",
    "give --negatives-per-query, one less than the passages of a query": "train-n-passages train-group-size",
    "give --precision bf16": "bf16 mixed-precision",
    "give --precision bf16, which needs no loss scaling": "fp16",
    "give --warmup-steps, a number of steps": "warmup-ratio",
    "give --strategy zero1, zero2 or zero3": "deepspeed",
    "give --strategy fsdp2, which shards weights, gradients and optimiser": "fsdp",
    "nothing is needed: negatives are gathered from all workers": "negatives-x-device negatives-cross-device",
    "give --similarity cosine, which normalises embeddings": "normalize normalize-embeddings normlized",
    "nothing is needed: a GPU is used where there is one; CUDA_VISIBLE_DEVICES chooses": "device",
    "set the environment variable RAY_ADDRESS": "ray-address",
    "give the query without a flag": "query",
    "`raytriever --version` prints it": "version",
}
# A stage, and what other programs call it.
_STAGES = {
    "evaluate": "eval test benchmark beir mteb",
    "train": "fit finetune fine-tune resume",
    "encode": "embed",
    "search": "query retrieve",
    "score": "rerank",
    "tune": "sweep hpo",
    "prepare": "tokenize tokenise preprocess",
    "launch": "start",
    "runs list": "list ls status",
    "runs clean": "clean",
    "cache prune": "prune",
    "doctor": "check",
    "compare": "diff report",
}
# A stage or a flag of an earlier version, and what to do instead.
_REMOVED = {
    "plan": "see docs/explanation/scale.md; `raytriever train --dry-run` computes the memory of a training",
    "--soft-labels": "use --guide, or --loss kl or margin-mse with the teacher",
    "--gather-precision": "embeddings are sent in fp32; --loss-precision chooses the products",
}


def removed(word: str) -> str | None:
    """Return what to do instead of a stage or a flag that was removed, or None for any other word."""
    return _REMOVED.get(word)


def suggest_for_flag(flag: str, known: Collection[str]) -> str:
    """Return a suggestion for an unknown flag, with underscores or dashes."""
    dashed = flag.replace("_", "-").lower()
    if dashed in known:
        return f"did you mean {dashed!r}?"
    for ours, others in _FLAGS.items():
        if ours in known and dashed.removeprefix("--") in others.split():
            return f"did you mean {ours!r}?"
    for advice, others in _ADVICE.items():
        named = set(re.findall(r"--[a-z-]+", advice)) - {"--version"}
        if dashed.removeprefix("--") in others.split() and named <= set(known):
            return advice
    return did_you_mean(dashed, [one for one in known if one not in ("-h", "--help", "--help-all")])


def suggest_for_stage(word: str, stages: Collection[str]) -> str:
    """Return a suggestion for an unknown stage."""
    ours = next((ours for ours, others in _STAGES.items() if word.lower() in others.split()), None)
    return f"did you mean {ours!r}?" if ours is not None else did_you_mean(word.lower(), stages)
