"""Write docs/benchmarks.md from benchmarks/results/*.json: `python benchmarks/page.py`.

The newest result of every benchmark is shown, with the figures and thresholds as the benchmark wrote them. A test
compares the committed page with the output of this script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
BAR = r"\|"
DATED = re.compile(r"(.+)-(\d{4}-\d{2}-\d{2})\.json")
NOT_A_THRESHOLD = {"reported", "reported, and complete", "-"}

# Name of the result, title of the section, script, what it compares. The order is that of the page.
SECTIONS = (
    ("ground_truth", "Known figures", "ground_truth.py", "BM25 and all-MiniLM-L6-v2 against figures that are known."),
    ("quickstart", "Quickstart", "quickstart.py", "The quickstart from cold caches."),
    ("startup", "Start of a training", "startup.py", "The time to the end of the first step."),
    (
        "zoo",
        "Model directories",
        "zoo.py",
        "Directories of sentence-transformers: embeddings of both libraries, and of readers that misread a property.",
    ),
    ("losses", "Losses", "losses.py", "Accuracy, time and extra memory of the losses; B is the batch size."),
    ("train", "Training", "train.py", "Training steps of MiniLM against sentence-transformers' trainer, same batches."),
    (
        "train-profile",
        "Profile of a training step",
        "train_profile.py",
        "Where the time of a step goes on one thread, and what share of the processor's peak its arithmetic reaches.",
    ),
    (
        "train-profile-avx2",
        "Profile of a training step with AVX2 alone",
        "train_profile.py",
        "The same in the environment that `--help` names.",
    ),
    (
        "gpu-estimate",
        "Estimated steps on a GPU",
        "gpu_estimate.py",
        "Estimates for an H200 from counted operations, padded and packed, before anything was measured.",
    ),
    ("gpu-losses", "Losses on a GPU", "gpu.py --sections losses", "MW against the cross-entropy of stored scores."),
    ("gpu-training", "Training on a GPU", "gpu.py --sections training", "Steps against sentence-transformers."),
    ("gpu-retrieval", "Encoding and search on a GPU", "gpu.py --sections retrieval", "Against the bare arithmetic."),
    (
        "gpu-kernels",
        "Kernels on a GPU",
        "gpu.py --sections kernels",
        "Where the time of a step goes; the largest kernels.",
    ),
    ("gpu-repeat", "Repeated trainings on a GPU", "gpu.py --sections repeat", "Equal losses, also after a stop."),
    ("memory", "Memory plan", "memory.py", "Planned memory of `train --dry-run` against allocated bytes."),
    (
        "lora-memory",
        "Memory of adapters",
        "lora_memory.py",
        "LoRA over a frozen bf16 base: peak memory against base, adapters' states and activations.",
    ),
    ("nested", "Nested embeddings", "nested.py", "nDCG@10 by number of components, with and without nested training."),
    ("workers", "Workers", "workers.py", "Two workers of one thread against one worker of two threads."),
    ("refresh", "Refresh of hard negatives", "refresh.py", "What refreshing costs and changes on 150 steps."),
    ("evaluating", "Validation during training", "evaluating.py", "What a step pays for a validation in parallel."),
    ("data", "Preparation of data", "data.py", "Preparing SQuAD against tokenising the same texts in memory."),
    ("data-feed", "Batches", "data_feed.py", "Waiting for batches, and padding."),
    ("retrieval-encode", "Encoding", "retrieval_encode.py", "Encoding against `SentenceTransformer.encode`."),
    (
        "encode-speed",
        "Speed of encoding",
        "retrieval_encode.py --sections speed --texts 360",
        "Encoding in fp32, bf16 and int8 against `SentenceTransformer.encode`, one thread, processor seconds.",
    ),
    (
        "encode-speed-avx2",
        "Speed of encoding with AVX2 alone",
        "retrieval_encode.py --sections speed --texts 360",
        "The same in the environment that `--help` names.",
    ),
    ("retrieval-search", "Exact search", "retrieval_search.py", "Exact search against FAISS's flat index."),
    (
        "retrieval-search-avx2",
        "Exact search with AVX2 alone",
        "retrieval_search.py",
        "The same in the environment that `--help` names.",
    ),
    ("size", "Size", "size.py", "The whole route on generated passages like MS MARCO's, at growing numbers of them."),
    (
        "size-ms-marco",
        "Size of MS MARCO",
        "size.py --documents 8800000",
        "Stages of the same route at 8.8 million passages, a day later; docs/explanation/scale.md compares both.",
    ),
    (
        "scale",
        "Metadata of a billion documents",
        "scale_simulation.py",
        "What planning, manifests and merging of 100,000 shards and 64 nodes take in the driver.",
    ),
    ("indexes", "Approximate indexes", "indexes.py", "RoarGraph and others on 100,000 documents of width 128."),
    ("retrieval-mine", "Mining", "retrieval_mine.py", "Hard negatives against `mine_hard_negatives`."),
    (
        "retrieval-mine-avx2",
        "Mining with AVX2 alone",
        "retrieval_mine.py",
        "The same in the environment that `--help` names.",
    ),
    ("metrics", "Metrics", "metrics.py", "Metrics against pytrec_eval and scikit-learn."),
    ("annotate", "Annotation", "annotate.py", "200 queries against a server with a fixed service time."),
    ("tune", "Sweeps", "tune.py", "A sweep against the same trials one after another."),
    ("studies", "Studies", "studies.py", "The twelve studies of the papers at the scale `smoke`."),
    ("tracking", "Tracking", "tracking.py", "What logging to MLflow alone, and to four trackers, costs the steps."),
    ("jobs", "Submitted jobs", "jobs.py", "A submitted job against the direct command."),
    ("faults", "Deaths of workers", "faults.py", "20 kills of workers of one run."),
    (
        "kills",
        "Kills of commands",
        "kills.py",
        "Commands that are killed, stopped and hung up, compared with undisturbed runs.",
    ),
)
# Figures with a threshold of sections that appear before they are measured, for want of a GPU.
UNMEASURED = {
    "gpu-repeat": {
        f"{loss}: {what} the same losses": "1"
        for loss in ("mw", "infonce", "lsepair")
        for what in ("two trainings have", "a resumed training has")
    },
}
PACKS = "ground_truth-packs"
STUDY = re.compile(r"study-(.+)-small")
ELSEWHERE = {
    "coverage",
    "studies-judged-again",
    "abstain-attempts",
    "from-base-depths",
    "kernels-kept",
}  # on the pages of intervals, of studies and of decisions


def newest(folder: Path) -> dict[str, tuple[str, Any]]:
    """Return the date and content of the newest result of each name."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        if match := DATED.fullmatch(path.name):
            results[match[1]] = match[2], json.loads(path.read_text(encoding="utf-8"))
    return results


def page(folder: Path = RESULTS) -> str:
    """Return the page of the results in a folder; raises ValueError for a result without a section."""
    results = newest(folder)
    sections = {name for name, *_ in SECTIONS} | {PACKS} | ELSEWHERE
    if missing := sorted(name for name in results if name not in sections and not STUDY.fullmatch(name)):
        raise ValueError(f"benchmarks/page.py: add a section for {', '.join(missing)}")
    return "\n".join([*_head(), *_measured(results), *_packs(results), *_studies(results)]).rstrip() + "\n"


def _head() -> Iterator[str]:
    yield "# Benchmarks\n"
    yield "<!-- `python benchmarks/page.py` writes this page from the results; do not edit it. -->\n"
    yield "Where a section names no machine, its figures were measured on two cores of an AMD EPYC (AVX-512, no GPU)."
    yield "`make bench` measures all of them again, and `benchmarks/gpu.py` those of a GPU. A threshold is what the"
    yield "benchmark demands; without one the figure is only reported. (x) is a ratio of times or speeds as the figure"
    yield "names it.\n"
    yield "How often intervals contain the truth is on the page [intervals](explanation/intervals.md).\n"


def _measured(results: Mapping[str, tuple[str, Any]]) -> Iterator[str]:
    for name, title, script, about in SECTIONS:
        if name not in results:
            yield from _unmeasured(name, title, script, about)
            continue
        date, content = results[name]
        machine = f", {content['machine']}" if "machine" in content else ""
        yield f"## {title}\n\n{about} `python benchmarks/{script}`, {date}{machine}.\n"
        yield "| figure | value | threshold |\n| --- | ---: | --- |"
        for figure, end in content.get("ends", content).items():
            yield f"| {figure.replace('|', BAR)} | {_number(end['value'])} | {_threshold(end)} |"
        yield ""


def _unmeasured(name: str, title: str, script: str, about: str) -> Iterator[str]:
    """Return the section of a benchmark of a GPU without its values; nothing for another benchmark."""
    if name not in UNMEASURED:
        return
    yield f"## {title}\n\n{about} `python benchmarks/{script}`.\n"
    yield "| figure | value | threshold |\n| --- | ---: | --- |"
    for figure, threshold in UNMEASURED[name].items():
        yield f"| {figure} | not measured: no GPU | {threshold} |"
    yield ""


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _threshold(end: Mapping[str, Any]) -> str:
    if end["target"] in NOT_A_THRESHOLD:
        return ""
    return end["target"] if end["holds"] else f"{end['target']} (**missed**)"


def _packs(results: Mapping[str, tuple[str, Any]]) -> Iterator[str]:
    if PACKS not in results:
        return
    date, rows = results[PACKS]
    yield "## BM25 and MiniLM on sixteen data sets\n"
    yield f"`python benchmarks/ground_truth.py --keep DIR`, {date}. nDCG@10 and pooled AUC.\n"
    yield "| data set | split | queries | documents | BM25 nDCG@10 | MiniLM nDCG@10 | BM25 AUC | MiniLM AUC |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in rows:
        values = [row[system][metric] for metric in ("ndcg_at_10", "auc") for system in ("bm25", "minilm")]
        cells = [row["pack"], row["split"], f"{row['queries']:,}", f"{row['documents']:,}"]
        yield f"| {' | '.join([*cells, *(f'{value:.4f}' for value in values)])} |"
    yield ""


def _studies(results: Mapping[str, tuple[str, Any]]) -> Iterator[str]:
    for name, (date, study) in results.items():
        if match := STUDY.fullmatch(name):
            yield f"## Study {match[1]}\n\n{study['source']}; scale small, {study['seeds']} seeds, {date}."
            yield f"`raytriever study {match[1]} --scale small`. Means ± standard deviations over seeds."
            yield f"[Claims and verdicts](explanation/studies/{match[1]}.md).\n"
            yield from _study_table(study["rows"])


def _study_table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    yield f"| | {' | '.join(rows)} |"
    yield f"| --- | {' | '.join('---:' for _ in rows)} |"
    for dataset, metrics in next(iter(rows.values())).items():
        for metric in metrics:
            cells = (_mean(datasets.get(dataset, {}).get(metric)) for datasets in rows.values())
            yield f"| {dataset} {metric} | {' | '.join(cells)} |"
    yield ""


def _mean(figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return ""
    deviation = "" if figure["deviation"] is None else f" ± {figure['deviation']:.4f}"
    return f"{figure['mean']:.4f}{deviation}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
