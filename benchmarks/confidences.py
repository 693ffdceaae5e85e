"""Area under the risk-coverage curve of each confidence, on four data sets, with MiniLM as published.

Run: `python benchmarks/confidences.py --data-root DIR [--passages N] [--json PATH]`. Of each data set some questions
are dev and test, with their relevant passages and others. Every second question loses its answers. What is fitted is
of dev; areas are of test, with 95 % intervals of 1,000 resamples of the questions. `difference` is the area
of `combined` minus that of the single confidence that is best on test.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from ends import machine, parser
from raytriever.annotation.output import write_beir
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.loading import load_for_encoding
from raytriever.evaluation.decision import questions_of
from raytriever.evaluation.evaluate import evaluate
from raytriever.evaluation.protocol import Protocol, select_judged_queries
from raytriever.evaluation.systems import DenseSystem
from raytriever.metrics.confidence import COMBINED, NAMES, fit_confidence
from raytriever.metrics.selective import area_under_risk_coverage, bootstrap_interval, resampling_weights
from raytriever.mining.bm25 import Bm25Index
from raytriever.models.config import ModelConfig
from raytriever.models.precision import default_device

PACKS = {"squad": "dev", "nq-paragraphs": "test", "scifact": "train", "medquad": "test"}
DEV, TEST, SAMPLES = 200, 400, 1_000


def subset(root: Path, pack: str, split: str, passages: int, folder: Path) -> str:
    """Write some questions of a pack, with their relevant passages and others, in BEIR layout."""
    rng = np.random.default_rng(0)
    dataset = open_dataset(str(root / pack), [split])
    positives = dataset.positives(split)
    asked = rng.permutation(len(positives))[: DEV + TEST]
    kept = np.unique(np.concatenate([positives.of(int(row)) for row in asked]))
    others = rng.permutation(np.setdiff1d(np.arange(len(dataset.documents)), kept))
    kept = np.sort(np.concatenate([kept, others[: max(0, passages - len(kept))]]))
    documents, ids = dataset.documents, dataset.queries.ids
    rows = (
        {"_id": documents.ids[at], "title": documents.titles[at], "text": documents.texts[at]} for at in kept.tolist()
    )
    queries = positives.queries[asked].tolist()
    judgements = {
        name: [
            (ids[positives.queries[row]], documents.ids[document], 1)
            for row in some.tolist()
            for document in positives.of(row).tolist()
        ]
        for name, some in (("dev", asked[:DEV]), ("test", asked[DEV:]))
    }
    folder.mkdir(parents=True)
    write_beir(
        folder, rows, ({"_id": ids[query], "text": dataset.queries.texts[query]} for query in queries), judgements
    )
    return str(folder)


def measure(root: Path, pack: str, split: str, passages: int) -> dict[str, object]:
    """Return the areas of a data set."""
    config = ModelConfig(passage_length=128)
    retriever = load_for_encoding(config, "fp32", default_device())
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_dataset(subset(root, pack, split, passages, Path(folder) / pack), ["dev", "test"])
        system, index = DenseSystem(dataset, config, retriever), Bm25Index.of(dataset.documents)
        questions = []
        for name in ("dev", "test"):
            judged = select_judged_queries(dataset, name, Protocol())
            questions.append(
                questions_of(judged, evaluate(dataset, name, system, Protocol(), judged), index, removed=0.5)
            )
    dev, test = questions
    weights = resampling_weights([len(test)], SAMPLES, 0)
    areas = {
        name: np.append(
            area_under_risk_coverage(values := fit_confidence(name, dev).of(test), test.right),
            area_under_risk_coverage(values, test.right, weights),
        )
        for name in NAMES
    }
    best = min((name for name in NAMES if name != COMBINED), key=lambda name: areas[name][0])
    difference = areas[COMBINED] - areas[best]
    return {
        "data set": pack,
        "questions": [len(dev), len(test)],
        "right": float(test.right.mean()),
        "areas": {name: [float(each[0]), *bootstrap_interval(each[1:])] for name, each in areas.items()},
        "best single": best,
        "difference": [float(difference[0]), *bootstrap_interval(difference[1:])],
    }


def main() -> None:
    """Measure and report."""
    line = parser(__doc__.splitlines()[0])
    line.add_argument("--data-root", type=Path, required=True, help="folder of the data sets")
    line.add_argument("--passages", type=int, default=1_500, help="passages of each data set")
    options = line.parse_args()
    rows = []
    for pack, split in PACKS.items():
        rows.append(measure(options.data_root, pack, split, options.passages))
        print(json.dumps(rows[-1], indent=1), flush=True)
    print(machine())
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
