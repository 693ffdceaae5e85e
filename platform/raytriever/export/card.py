"""The model card (Mitchell et al., 2019): what a model is, what it learnt from, what it is worth, and where it ends.

A README with the metadata the hub reads, made of what stands on disk and of nothing else: a run's `config.yaml` and
`metrics.json`, and an evaluation's `results.json`. What nobody measured is not said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytriever.evaluation.pooled_scores import calibration_table
from raytriever.models.description import Description
from raytriever.models.source import MINILM
from raytriever.terminal import markdown_table

PUBLISHED = {MINILM: "sentence-transformers/all-MiniLM-L6-v2"}
MAIN = ("ndcg_at_10", "mrr_at_10", "recall_at_100", "auc")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_TRAINED = {"bm25": "BM25", "before": "before training", "after": "this model"}

USE = """## Intended use
Finding passages for questions like those of the data it was trained and measured on, in search and in retrieval for
language models. Scores are {similarity}s; whether they can be compared across queries, and held to a threshold, is what
the AUC and the thresholds below say, where they are given. On other kinds of text, other languages or longer passages
than {length} tokens, which are cut, it has not been measured: measure it there first. What the training data misses or
distorts, the ranking misses or distorts too; a high score says that texts are alike in the model's eyes, not that a
passage is true.
"""
READ = """## Reading it
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
queries = model.encode_query(["a question"]{length})
passages = model.encode_document(["a passage"]{length})
model.similarity(queries, passages)
```
"""


@dataclass(frozen=True)
class CardFacts:
    """Facts for a model card.

    Args:
        name: of the model.
        description: how it reads texts.
        width: of its embeddings.
        licence: an SPDX identifier of the hub, or None.
        config: the settings of the run that made it; empty where no run of ours did.
        trained: that run's `metrics.json`; empty where there is none.
        results: of an evaluation, metrics by data set, with `about` and `calibration` rows of this model; may be empty.
        graphs: a line a written format.
    """

    name: str
    description: Description
    width: int
    licence: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    trained: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    graphs: Sequence[str] = ()


def model_card(facts: CardFacts) -> str:
    """The text of a model's `README.md`, its metadata in front as the hub reads them."""
    from huggingface_hub import ModelCardData

    base = facts.config.get("model", {}).get("model")
    base = PUBLISHED.get(base, base)
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "dense-retrieval", "raytriever"],
        license=facts.licence,
        base_model=base if base and _HUB_NAME.fullmatch(base) else None,
        model_name=facts.name,
        eval_results=_measured(facts) or None,
    )
    parts = [
        f"# {facts.name}\n\n{_what(facts)}\n",
        READ.format(name=facts.name, length=", normalize_embeddings=True" if _cut_behind(facts.description) else ""),
        USE.format(similarity=facts.description.similarity.replace("dot", "dot product"), length=_length(facts)),
        *_training(facts),
        *_worth(facts),
    ]
    if facts.graphs:
        parts.append("## Other runtimes\n" + "".join(f"- {line}\n" for line in facts.graphs))
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(parts)


def _what(facts: CardFacts) -> str:
    how = facts.description
    towers = (
        "One encoder reads queries and passages" if how.towers == "shared" else "Queries and passages have encoders"
    )
    prefixes = [
        f"{side} begin with `{text}`"
        for side, text in (("queries", how.query_prefix), ("passages", how.passage_prefix))
        if text
    ]
    lines = [
        f"A dense retriever: texts become vectors of {facts.width} components, and a query is near its answers.",
        f"{towers}{'' if how.towers == 'shared' else ' of their own'}, {how.pooling} pooling, {how.similarity}"
        f"{' similarity' if how.similarity == 'cosine' else ' products'}; queries are cut at {how.query_length} tokens,"
        f" passages at {how.passage_length}{''.join(', ' + line for line in prefixes)}.",
    ]
    return "\n".join(lines)


def _cut_behind(how: Description) -> bool:
    """Return True if sentence-transformers returns embeddings shorter than one: it cuts them after normalisation."""
    return how.truncate_dim is not None and how.similarity == "cosine"


def _length(facts: CardFacts) -> int:
    return facts.description.passage_length


def _training(facts: CardFacts) -> list[str]:
    if not facts.config:
        return []
    import yaml

    data = facts.config.get("data", {}).get("dataset", "unknown")
    loss = facts.config.get("loss", {}).get("name", "unknown")
    text = yaml.safe_dump(dict(facts.config), sort_keys=False, allow_unicode=True)
    return [
        f"## Training\nTrained by raytriever on `{data}` with the loss `{loss}`. All settings:\n\n"
        f"<details><summary>config.yaml</summary>\n\n```yaml\n{text}```\n\n</details>\n"
    ]


def _worth(facts: CardFacts) -> list[str]:
    parts = []
    if facts.trained:
        rows = {_TRAINED[name]: facts.trained[name] for name in _TRAINED if facts.trained.get(name)}
        title = f"`{facts.trained['dataset']}`, split `{facts.trained['split']}`, when it was trained"
        parts.append(f"## Results\n{title}:\n\n{_table(rows)}")
    models = facts.results.get("models", {})
    if models:
        head = "" if facts.trained else "## Results\n"
        splits = {about["split"] for about in facts.results.get("about", {}).values()}
        parts.append(
            f"{head}Measured afterwards, split {', '.join(f'`{one}`' for one in sorted(splits))}:\n\n{_table(models)}"
        )
    rows = facts.results.get("calibration", [])
    if rows:
        parts.append(
            "## Thresholds\nA score from which on a passage is taken, chosen on one split for all queries and checked"
            f" on the other:\n\n{calibration_table(rows)}"
        )
    return parts


def _table(rows: Mapping[str, Mapping[str, float | None]]) -> str:
    names = [name for name in MAIN if any(row.get(name) is not None for row in rows.values())]
    names = names or sorted({name for row in rows.values() for name in row})[:6]
    lines = [
        [label, *("-" if (value := row.get(name)) is None else f"{value:.4f}" for name in names)]
        for label, row in rows.items()
    ]
    return markdown_table([["", *names], *lines])


def _measured(facts: CardFacts) -> list[Any]:
    """The figures in the hub's form."""
    from huggingface_hub import EvalResult

    found: dict[str, tuple[str, Mapping[str, float | None]]] = {}
    if facts.trained.get("after"):
        found[facts.trained["dataset"]] = (facts.trained["split"], facts.trained["after"])
    for name, row in facts.results.get("models", {}).items():
        found[name] = (facts.results["about"][name]["split"], row)
    return [
        EvalResult(
            task_type="information-retrieval",
            task_name="Information Retrieval",
            dataset_type=re.sub(r"[^\w.-]+", "-", name),
            dataset_name=name,
            dataset_split=split,
            metric_type=metric,
            metric_value=round(value, 5),
        )
        for name, (split, row) in found.items()
        for metric, value in row.items()
        if value is not None
    ]
