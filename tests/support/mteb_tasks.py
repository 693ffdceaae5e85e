"""Tasks of MTEB whose data is made here: two retrieval tasks, one reranking task and one of similar sentences."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

from datasets import Dataset
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.aggregate_task_metadata import AggregateTaskMetadata
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from tiny_models import text_of


def metadata(name: str, kind: str, score: str, path: str = "made/here", splits: tuple[str, ...] = ("test",)) -> Any:
    return TaskMetadata(
        name=name,
        description="Made in a test.",
        reference=None,
        dataset={"path": path, "revision": "1"},
        type=kind,
        category="t2t",
        modalities=["text"],
        eval_splits=list(splits),
        eval_langs=["eng-Latn"],
        main_score=score,
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation="",
    )


def split_data(documents: int, queries: int, seed: int, candidates: int = 0) -> dict[str, Any]:
    """One split: documents with and without titles, one without any text, and graded judgements."""
    rng = random.Random(seed)
    texts = {f"d{number}": text_of(6 + number % 9, seed + number) for number in range(documents)}
    corpus = [
        {"id": key, "title": text_of(2, number) if number % 3 == 0 else "", "text": text if number != 5 else ""}
        for number, (key, text) in enumerate(texts.items())
    ]
    asked = [{"id": f"q{number}", "text": texts[f"d{number}"][:30]} for number in range(queries)]
    asked.append({"id": "d3", "text": texts["d3"][:25]})  # the id of a document
    relevant = {
        row["id"]: {f"d{rng.randrange(30)}": 1, f"d{rng.randrange(30, documents)}": 2, f"d{number}": 0, "d3": 1}
        for number, row in enumerate(asked)
    }
    ranked = {row["id"]: rng.sample(list(texts), candidates) for row in asked} if candidates else None
    return {
        "corpus": Dataset.from_list(corpus),
        "queries": Dataset.from_list(asked),
        "relevant_docs": relevant,
        "top_ranked": ranked,
    }


class TinyRetrieval(AbsTaskRetrieval):
    metadata = metadata("TinyRetrieval", "Retrieval", "ndcg_at_10")
    ignore_identical_ids = True

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        self.dataset = {"default": {"test": split_data(60, 20, 0), "dev": split_data(60, 15, 0)}}
        self.data_loaded = True


class TinyReranking(AbsTaskRetrieval):
    metadata = metadata("TinyReranking", "Reranking", "map_at_10")

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        if os.environ.get("KILL_IN_RERANKING"):
            os.kill(os.getpid(), signal.SIGKILL)
        self.dataset = {"default": {"test": split_data(50, 12, 100, candidates=15)}}
        self.data_loaded = True


class TinySimilarity(AbsTaskSTS):
    metadata = metadata("TinySimilarity", "STS", "cosine_spearman")
    min_score, max_score = 0, 5

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        texts = ((text_of(6, number), text_of(5, number + 1 + number % 4), 5.0 - number % 4) for number in range(30))
        pairs = [dict(zip(("sentence1", "sentence2", "score"), text, strict=True)) for text in texts]
        self.dataset = {"test": Dataset.from_list(pairs)}
        self.data_loaded = True


class TinyTogether(AbsTaskAggregate):
    metadata = AggregateTaskMetadata(
        name="TinyTogether",
        description="The mean of two retrieval tasks.",
        reference=None,
        tasks=[TinyRetrieval(), TinyReranking()],
        main_score="ndcg_at_10",
        type="Retrieval",
        eval_splits=["test"],
        bibtex_citation="",
    )


class Broken(TinySimilarity):
    """A task whose own code fails after its data is loaded."""

    metadata = metadata("Broken", "STS", "cosine_spearman")

    def _evaluate_subset(self, *args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("no pair is left\nsecond line")


class FarAway(AbsTaskRetrieval):
    """A task whose data set is on no hub that a test reaches."""

    metadata = metadata("FarAway", "Retrieval", "ndcg_at_10", path="nobody/no-such-data-set")


def register() -> None:
    """Make these tasks known to MTEB by their names."""
    import sys

    import mteb  # noqa: F401

    tasks = (TinyRetrieval, TinyReranking, TinySimilarity, FarAway, Broken)
    sys.modules["mteb.get_tasks"]._TASKS_REGISTRY.update({task.metadata.name: task for task in tasks})  # type: ignore[attr-defined]


if __name__ == "__main__":
    import sys

    from raytriever.cli.main import run

    register()
    sys.exit(run("evaluate", sys.argv[1:]))
