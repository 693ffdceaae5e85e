"""The whole route at growing sizes, on a generated data set like MS MARCO's.

Run: `python benchmarks/size.py [--documents 100000 1000000 8800000] [--stages NAME ...] [--kill] [--folder DIR]
[--json PATH]`.
The ordinary commands run one after another, each in a process of its own, with an encoder of two layers and dimension
64. For each stage and size: seconds, processor seconds, the largest memory of the driver and of its workers, and bytes
   on
the disk; and the exponent e of the growth between two sizes, processor seconds ~ documents^e. The stages at the end add
10,000 passages to the corpus, the embeddings and the indexes.

A stage that has finished is not run again: its figures are kept in the folder, and all figures there are reported. A
stage that failed ends the run with the end of its log. With --kill each stage up to `ivfpq` is run once more, killed
after half of its time, and given again; reported are the processor seconds that this cost. Without the stage `train`,
later stages use the encoder as it was generated. 8.8 M documents need 60 GB of disk."""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
from argparse import Namespace
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from at_size.corpus import extend, write
from at_size.encoder import write_encoder
from at_size.processes import measure
from ends import End, job, own_places, parser, report

# Words of each command, after which the folder of its output is named. Folders of earlier stages are in braces, and
# {model} is the encoder.
STAGES = {
    "generate": "",
    "prepare": "prepare --dataset {generate} --model {generate}/encoder",
    "bm25": "evaluate --datasets {prepare} --split dev --model bm25 --metrics ndcg@10,mrr@10,recall@1000,auc",
    "mine": "mine --dataset {prepare} --method bm25 --num-negatives 10",
    "train": "train --dataset {prepare} --model {generate}/encoder --negatives-table {mine} --negatives-per-query 2 "
    "--max-steps 200 --refresh-every 100 --refresh-mode sync --refresh-pool 2 --test-split dev --allow-split-overlap",
    "encode": "encode --dataset {prepare} --model {model}",
    "evaluate": "evaluate --datasets {prepare} --split dev --model {model} --metrics ndcg@10,mrr@10,recall@1000,auc",
    "mine-dense": "mine --dataset {prepare} --method dense --num-negatives 10 --relative-margin 0.05 "
    "--model {model} --embeddings {encode}",
    "hnsw": "index --dataset {prepare} --model {model} --embeddings {encode} --index hnsw --split dev",
    "ivfpq": "index --dataset {prepare} --model {model} --embeddings {encode} --index ivfpq --split dev",
    "add": "",
    "prepare-added": "prepare --dataset {add}/generate --model {generate}/encoder",
    "encode-added": "encode --dataset {prepare-added} --model {model}",
}
ADDED = 10_000
MAKERS = ("prepare", "bm25", "encode")  # of what later stages and later runs of the same command find
KILLED = "-killed"
LINEAR = ("prepare", "encode", "evaluate")
DRIVER_GB, EXPONENT, MINING_MINUTES, PAPERS = 3.0, 1.05, 60, 8_000_000


def figures_of(stage: str, folder: Path) -> dict[str, float]:
    """Return the figures of a stage that has finished; empty if it has not."""
    file = folder / "figures" / f"{stage}.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def run(stage: str, documents: int, folder: Path) -> None:
    """Run one stage, unless it has finished."""
    if figures_of(stage, folder):
        return
    figures = folder / "figures" / f"{stage}.json"
    output, log = folder / stage, folder / "logs" / f"{stage}.log"
    for made in (figures, log):
        made.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(output, ignore_errors=True)
    if stage == "encode":  # and not copy what `train` has encoded
        shutil.rmtree(folder / "cache" / "embeddings", ignore_errors=True)
    before = size_of(folder)
    code, usage = measure(command(stage, documents, folder, output), own_places(folder), log)
    if code:
        lines = log.read_text(errors="replace").splitlines()[-12:]
        sys.exit("\n".join([f"size.py: {stage} of {documents:,} documents failed (exit code {code}):", *lines]))
    content = {**asdict(usage), "disk": size_of(folder) - before}
    figures.write_text(json.dumps(content, indent=1))


def run_killed(stage: str, documents: int, folder: Path) -> None:
    """Run a stage that has finished once more, with a kill after half of its time, unless that has been done."""
    figures, killed = folder / "figures" / f"{stage}{KILLED}.json", folder / "killed"
    if figures.exists():
        return
    output, log, undisturbed = killed / stage, folder / "logs" / f"{stage}{KILLED}.log", figures_of(stage, folder)
    shutil.rmtree(output, ignore_errors=True)
    variables = own_places(folder)
    if stage in MAKERS:  # which would copy what was made before
        shutil.rmtree(killed / "cache", ignore_errors=True)
        variables["RAYTRIEVER_CACHE"] = str(killed / "cache")
    words = command(stage, documents, folder, output)
    used = []
    for seconds in (undisturbed["seconds"] / 2, math.inf):
        code, usage = measure(words, variables, log, seconds)
        used.append(usage.processor_seconds)
        if code and code != -signal.SIGKILL:
            sys.exit(f"size.py: {stage} of {documents:,} documents failed after a kill (exit code {code}): see {log}")
    shutil.rmtree(output)
    figures.write_text(json.dumps({"lost": sum(used) - undisturbed["processor_seconds"]}, indent=1))


def command(stage: str, documents: int, folder: Path, output: Path) -> list[str]:
    """Return the words of a stage's command."""
    if stage == "generate":
        return [sys.executable, __file__, "--generate", str(output), "--documents", str(documents)]
    if stage == "add":
        return [sys.executable, __file__, "--add", str(folder / "generate"), str(output)]
    model = folder / "train" / "model" if figures_of("train", folder) else folder / "generate" / "encoder"
    words = STAGES[stage].format(model=model, **{name: folder / name for name in STAGES}).split()
    return [*job(words[0]), *words[1:], "--output", str(output)]


def size_of(folder: Path) -> int:
    """Return the bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def generate(folder: Path, documents: int) -> None:
    """Write the data set and the encoder."""
    write(folder, documents)
    write_encoder(folder / "encoder")


def add(source: Path, folder: Path) -> None:
    """Write the data set of `source` with more passages, under the same name."""
    extend(source, folder / source.name, ADDED)


def ends_of(stage: str, figures: dict[int, dict[str, float]]) -> dict[str, End]:
    """Return the results of a stage at all sizes."""
    ends = {}
    for documents, values in figures.items():
        name = f"{stage}, {documents:,}"
        limited = stage == "mine" and documents >= PAPERS
        minutes = values["seconds"] / 60
        target = f"<= {60 * MINING_MINUTES}" if limited else "-"
        ends[f"{name}: seconds"] = End(values["seconds"], target, not limited or minutes <= MINING_MINUTES)
        ends[f"{name}: processor seconds"] = End(values["processor_seconds"], "-", True)
        driver = values["driver_anonymous"] / 1e9
        ends[f"{name}: driver, anonymous (GB)"] = End(driver, f"<= {DRIVER_GB:g}", driver <= DRIVER_GB)
        for key in ("driver_resident", "workers_anonymous", "workers_resident", "disk"):
            ends[f"{name}: {key.replace('_', ', ')} (GB)"] = End(values[key] / 1e9, "-", True)
        if "lost" in values:
            fraction = values["lost"] / values["processor_seconds"]
            ends[f"{name}: killed after half of its time, lost (processor seconds)"] = End(values["lost"], "-", True)
            ends[f"{name}: killed after half of its time, lost (share)"] = End(fraction, "-", True)
    for small, large in pairwise(figures):
        for key, unit in (("processor_seconds", "time"), ("driver_anonymous", "driver's memory")):
            exponent = math.log(figures[large][key] / figures[small][key]) / math.log(large / small)
            limited = stage in LINEAR and unit == "time"
            target = f"<= {EXPONENT}" if limited else "-"
            ends[f"{stage}, {small:,} to {large:,}: exponent of {unit}"] = End(
                exponent, target, not limited or exponent <= EXPONENT
            )
    return ends


def arguments() -> Namespace:
    """Parse the command line."""
    flags = parser(__doc__.partition("\n")[0])
    flags.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000, 8_800_000], metavar="N")
    flags.add_argument(
        "--stages", nargs="+", choices=STAGES, default=list(STAGES), metavar="NAME", help="stages to run"
    )
    flags.add_argument(
        "--kill", action="store_true", help="run each stage once more, and kill it after half of its time"
    )
    flags.add_argument("--folder", type=Path, default=Path("size"), help="folder of the outputs (default: size)")
    flags.add_argument("--generate", type=Path, metavar="DIR", help="only write the data set and the encoder")
    flags.add_argument("--add", type=Path, nargs=2, metavar="DIR", help="only write a data set with more passages")
    return flags.parse_args()


def main() -> None:
    """Run the stages and report them."""
    options = arguments()
    if options.generate:
        generate(options.generate, options.documents[0])
        return
    if options.add:
        add(*options.add)
        return
    folder = options.folder.absolute()
    folders = {documents: folder / str(documents) for documents in sorted(options.documents)}
    for documents, at_size in folders.items():
        for stage in options.stages:
            run(stage, documents, at_size)
            seconds = figures_of(stage, at_size)["seconds"]
            print(f"{documents:,} {stage}: {seconds:,.0f} s", file=sys.stderr, flush=True)
            if options.kill and stage not in ("generate", "add") and not stage.endswith("-added"):
                run_killed(stage, documents, at_size)
    figures = {
        stage: {
            documents: found | figures_of(f"{stage}{KILLED}", at_size)
            for documents, at_size in folders.items()
            if (found := figures_of(stage, at_size))
        }
        for stage in STAGES
    }
    ends = {name: end for stage, sizes in figures.items() for name, end in ends_of(stage, sizes).items()}
    report("Size", ends, options.json)


if __name__ == "__main__":
    main()
