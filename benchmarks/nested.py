"""Nested embeddings against plain ones: retrieval with the first components after the same training.

Run: `python benchmarks/nested.py [--json PATH] [--steps 60] [--others 3000] [--work DIR]`. MiniLM is trained on pydocs
with the settings of the recipe, once with `--matryoshka-dims` and once without, with the same steps and batches. Both,
and the published MiniLM, are measured at each dimension (like `--truncate-dim`: cut and normalised to length one) on
all queries of the test split. The corpus has the judged passages and others, half of them the nearest by BM25. Encoders
that `--work` contains are not trained again."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy import ndarray

from ends import End, parser, report, reported
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.evaluated_datasets import sample_corpus
from raytriever.evaluation.systems import evaluate_embeddings
from raytriever.experiments.recipes import pydocs
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.device_and_precision import choose_precision
from raytriever.models.directory.model_files import quiet_transformers
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.training_data import TrainingData

DIMS = (256, 128, 64, 32, 16)
NARROW, WHOLE = 32, 384
METRIC = "ndcg_at_10"
CPU = torch.device("cpu")


def trained(loss: LossConfig, steps: int, folder: Path) -> Path:
    """Return the model directory after this number of steps from MiniLM; an existing one is used again."""
    if (folder / "model").is_dir():
        return folder / "model"
    folder.mkdir(parents=True, exist_ok=True)
    config = pydocs()
    retriever = load_retriever(config.model)
    training = replace(config.training, max_steps=steps, eval_steps=steps, patience=steps)
    training_data = TrainingData.open(
        config.data.datasets, config.data, tokenization_of(retriever), training.batch_size, training.seed
    )
    train(
        TrainingSetup(
            retriever=retriever,
            train=training_data.train(None),
            dev=training_data.dev(),
            loss=loss,
            training=training,
            total_steps=steps,
            precision=choose_precision(None, CPU),
            device=CPU,
            workers=ALONE,
            folder=folder / "checkpoints",
            on_metrics=lambda step, measured: None,
            log=print,
        )
    )
    (folder / "writing").mkdir()
    with quiet_transformers():
        write_model(retriever.eval(), folder / "writing")
    return (folder / "writing").rename(folder / "model")


@cache
def measured_on(others: int) -> RetrievalDataset:
    """Return the test split and a part of the corpus."""
    dataset = open_dataset("pydocs", ["test"])
    return sample_corpus(dataset, "test", others, 0, lambda whole: Bm25Index.of(whole.documents))


def cut(embeddings: ndarray, dim: int) -> ndarray:
    """Return the first components, normalised to length one."""
    return embeddings[:, :dim] / np.linalg.norm(embeddings[:, :dim], axis=1, keepdims=True)


def by_dim(retriever: Retriever, dataset: RetrievalDataset) -> dict[int, float]:
    """Return nDCG@10 at each dimension."""
    queries_of = dataset.positives("test").queries
    queries = encode_texts(retriever, [dataset.queries.texts[int(query)] for query in queries_of], "query", "queries")
    passages = encode_texts(retriever, dataset.passages(), "passage", "passages")
    return {
        dim: evaluate_embeddings(dataset, "test", cut(queries, dim), cut(passages, dim)).metrics[METRIC]
        for dim in (WHOLE, *DIMS)
    }


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--steps", type=int, default=60, help="of either training (default: 60)")
    arguments.add_argument("--others", type=int, default=3_000, help="passages besides the judged ones (default: 3000)")
    arguments.add_argument("--work", type=Path, metavar="DIR", help="keep the trained encoders there")
    options = arguments.parse_args()
    own, precision = pydocs(), choose_precision(None, CPU)
    nested = replace(own.loss, matryoshka_dims=",".join(map(str, DIMS)))
    results = {}
    with TemporaryDirectory() as scratch:
        models = {"published": str(own.model.model)}
        for name, loss in (("plain", own.loss), ("nested", nested)):
            models[name] = str(trained(loss, options.steps, (options.work or Path(scratch)) / name))
        for name, model in models.items():
            config = ModelConfig(model, passage_length=own.model.passage_length)
            results[name] = by_dim(load_for_encoding(config, precision, CPU), measured_on(options.others))
    ends = {
        f"{name}: nDCG@10 at {dim} components": reported(value)
        for name, values in results.items()
        for dim, value in values.items()
    }
    gained, paid = (results["nested"][dim] / results["plain"][dim] for dim in (NARROW, WHOLE))
    ends[f"nested / plain at {NARROW} components (x)"] = End(gained, "above 1", gained > 1)
    ends[f"nested / plain at {WHOLE} components (x)"] = reported(paid)
    report(f"nested embeddings, {options.steps} steps", ends, options.json)


if __name__ == "__main__":
    main()
