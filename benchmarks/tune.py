"""The cost of a sweep in addition to its trials: 12 trials, 3 losses x 2 lambdas x 2 temperatures, on a tiny encoder.

Run: `python benchmarks/tune.py [--json PATH] [--steps 400] [--keep DIR]`. The bare trials are the plain training loop
without Ray, one trial after another in one process with all cores: load the encoder, open the data, train and write
checkpoints, write the model, measure it on the dev split. Their imports and the preparation of the data set happen
before and are not counted, which favours them. The sweep is `python jobs/tune.py` from the start of the process to its
end. It includes all imports, the start of the session, the tracking database, the table, the figures, and the
evaluation of the best trial, BM25 and the untrained encoder on the test split."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from ends import End, job, own_places, parser, report, reported
from faults import make_dataset, make_encoder

RATIO = 1.3
SPACE = """
loss:
  loss: [infonce, infonce-symmetric, mw]
  distribution_weight: [0.0, 0.01]
  temperature: [0.02, 0.05]
"""
SETTINGS = {
    "dataset": "letters",
    "model": "encoder",
    "batch-size": 128,
    "learning-rate": 1e-3,
    "precision": "fp32",
    "eval-steps": 100,
    "patience": 99,
}


def bare(steps: int) -> list[float]:
    """Return the seconds of each trial by the plain loop, in this process and folder."""
    import torch

    from raytriever.core.store.commit import committed_directory
    from raytriever.data.prepare.open_dataset import open_dataset
    from raytriever.evaluation.evaluate_split import evaluate
    from raytriever.evaluation.systems import DenseSystem
    from raytriever.experiments.tuning.ray.shared_training_data import trial_config
    from raytriever.experiments.tuning.space import parse_search_space
    from raytriever.losses.distributed import ALONE
    from raytriever.models.model_settings import ModelConfig
    from raytriever.models.prepare_for_training import prepare_for_training
    from raytriever.models.retriever import load_retriever
    from raytriever.models.save_model import write_model
    from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
    from raytriever.retrieval.encoding.shard_encoder import tokenization_of
    from raytriever.training.loop import TrainingSetup, train
    from raytriever.training.run_config import from_dict
    from raytriever.training.training_data import TrainingData

    torch.set_num_threads(os.cpu_count() or 1)
    training = {name.replace("-", "_"): value for name, value in SETTINGS.items()}
    sections = {"data": ("dataset",), "model": ("model",)}
    base = from_dict(
        {section: {name: training.pop(name) for name in names} for section, names in sections.items()}
        | {"training": {**training, "max_steps": steps}},
        "benchmark",
    )
    device, seconds = torch.device("cpu"), []
    for number, point in enumerate([{}, *parse_search_space("space.yaml").grid()]):
        config, folder = trial_config(base, point), Path("bare") / f"{number}"
        began = time.perf_counter()
        retriever = load_retriever(config.model)
        prepare_for_training(retriever, config.model, config.training.seed)
        tokenization = tokenization_of(retriever)
        training_data = TrainingData.open(["letters"], config.data, tokenization, config.training.batch_size, 0)
        logged: list[object] = []
        train(
            TrainingSetup(
                retriever=retriever,
                train=training_data.train(None),
                dev=training_data.dev(),
                loss=config.loss,
                training=config.training,
                total_steps=steps if point else 2,  # the first is for what is compiled and imported on the way
                precision="fp32",
                device=device,
                workers=ALONE,
                folder=folder / "checkpoints",
                on_metrics=lambda step, measured, logged=logged: logged.append((step, dict(measured))),
                log=lambda text: None,
                data_digest=training_data.digest(None),
            )
        )
        with committed_directory(folder / "model") as aside:
            write_model(retriever.eval(), aside)
        own = ModelConfig(model=str(folder / "model"))
        dataset = open_dataset("letters", [config.data.dev_split], tokenization=tokenization)
        evaluate(dataset, config.data.dev_split, DenseSystem(dataset, own, load_for_encoding(own, "fp32", device)))
        seconds.append(time.perf_counter() - began)
        shutil.rmtree(folder)
    return seconds[1:]


def main() -> None:
    """Run the bare trials, the sweep, and the bare trials again, because the speed of the machine may change."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--steps", type=int, default=400, help="of each trial (default: 400)")
    arguments.add_argument("--keep", type=Path, metavar="DIR", help="copy the sweep's table and figures there")
    arguments.add_argument("--bare", action="store_true", help="only time the bare trials, in this very folder")
    options = arguments.parse_args()
    if options.bare:
        print(json.dumps(bare(options.steps)))
        return
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_encoder(folder / "encoder")
        make_dataset(folder / "letters", 3_000, 2_400, 300)
        (folder / "space.yaml").write_text(SPACE)
        environment = {name: value for name, value in own_places(folder).items() if name != "OMP_NUM_THREADS"}

        def run(*words: str) -> str:
            done = subprocess.run(
                [sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            return done.stdout

        def all_bare() -> list[float]:
            return list(json.loads(run(__file__, "--bare", "--steps", str(options.steps)).splitlines()[-1]))

        first = all_bare()
        flags = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
        flags += ["--max-steps", str(options.steps), "--search-space", "space.yaml", "--output", "sweep"]
        began = time.perf_counter()
        print(run(*job("tune")[1:], *flags))
        whole = time.perf_counter() - began
        second = all_bare()
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for file in [folder / "sweep" / "table.md", *(folder / "sweep" / "figures").iterdir()]:
                shutil.copy(file, options.keep / file.name)
    sums = sum(first), sum(second)
    ratio = whole / (sum(sums) / 2)
    ends = {
        "a sweep of 12 trials, times the sum of the bare trials": End(ratio, f"<= {RATIO}", ratio <= RATIO),
        "what it adds, however long trials are, seconds": reported(whole - sum(sums) / 2),
        "the sweep, seconds": reported(whole),
        "the bare trials before it, seconds": reported(sums[0]),
        "the bare trials after it, seconds": reported(sums[1]),
    }
    report("tune", ends, options.json)


if __name__ == "__main__":
    main()
