"""From a cross-encoder to a student that ranks as it does: `mine`, `score`, `train`, as a user gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from raytriever.encoding.encode import encode_texts
from raytriever.models.config import ModelConfig
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.retriever import load_retriever
from raytriever.models.source import embedded_minilm

TOPICS = (
    "river lake ocean stream",
    "guitar piano violin drum",
    "doctor nurse hospital medicine",
    "engine wheel car truck",
    "bread cheese butter milk",
    "king queen castle crown",
    "forest tree leaf flower",
    "snow winter ice cold",
)
QUERIES, DOCUMENTS = 260, 240


def sentence(rng: np.random.Generator, topics: list[int], words: int) -> str:
    return " ".join(str(rng.choice(TOPICS[rng.choice(topics)].split())) for _ in range(words))


@pytest.fixture(scope="module")
def texts() -> tuple[list[str], list[str], np.ndarray]:
    """Queries, passages, and how many of a passage's words are of the query's topic."""
    rng = np.random.default_rng(3)
    asked = rng.integers(8, size=QUERIES)
    topics = rng.integers(8, size=(DOCUMENTS, 2))
    queries = [sentence(rng, [topic], 3) for topic in asked]
    passages = [sentence(rng, [a, a, b], 5) for a, b in topics]
    topic = {word: number for number, words in enumerate(TOPICS) for word in words.split()}
    of = np.array([[topic[word] for word in passage.split()] for passage in passages])
    return queries, passages, (asked[:, None, None] == of[None]).sum(2)


@pytest.fixture(scope="module")
def dataset(texts: tuple[list[str], list[str], np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all passages on a query's topic one alone is judged, as in sparsely labelled data."""
    queries, passages, overlap = texts
    folder = tmp_path_factory.mktemp("topics") / "topics"
    (folder / "qrels").mkdir(parents=True)
    for name, stem, lines in (("corpus", "d", passages), ("queries", "q", queries)):
        rows = [json.dumps({"_id": f"{stem}{n}", "title": "", "text": text}) + "\n" for n, text in enumerate(lines)]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    for split, members in {"train": range(180), "dev": range(180, 220), "test": range(220, 260)}.items():
        rows = [f"q{q}\td{overlap[q].argmax()}\t1\n" for q in members]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return folder


@pytest.fixture(scope="module")
def teacher(texts: tuple[list[str], list[str], np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of random weights, two layers of width 64, taught for some seconds how near passages are to queries."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    queries, passages, overlap = texts
    folder = tmp_path_factory.mktemp("teacher") / "cross"
    tokenizer = AutoTokenizer.from_pretrained(embedded_minilm())
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.1,
            num_labels=1,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 40, 1) * (1 - step / 400))
    rng = np.random.default_rng(0)
    for _ in range(400):
        q, d = rng.integers(180, size=64), rng.integers(DOCUMENTS, size=64)
        d[:32] = [rng.choice(np.flatnonzero(overlap[row])) for row in q[:32]]
        batch = tokenizer([queries[n] for n in q], [passages[n] for n in d], padding=True, return_tensors="pt")
        wanted = torch.tensor(overlap[q, d] * 2.0 - 3, dtype=torch.float32)
        loss = (model(**batch).logits[:, 0] - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of random weights."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("student") / "encoder"
    tokenizer = AutoTokenizer.from_pretrained(embedded_minilm())
    torch.manual_seed(4)
    BertModel(
        BertConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
            initializer_range=0.1,
        )
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def agreement(student: Path, wanted: np.ndarray, queries: list[str], passages: list[str]) -> float:
    """Spearman's rank correlation of student and teacher over all passages, the mean over queries."""
    retriever = load_retriever(ModelConfig(str(student), query_length=32, passage_length=32))
    scores = encode_texts(retriever, queries, "query") @ encode_texts(retriever, passages, "passage").T
    return float(np.mean([spearmanr(ours, theirs).statistic for ours, theirs in zip(scores, wanted, strict=True)]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_student_gets_nearer_to_its_teacher(
    command_line_in: Callable, texts: tuple, dataset: Path, teacher: Path, student: Path, tmp_path: Path
) -> None:
    cli = command_line_in(tmp_path)

    def call(stage: str, *words: object) -> str:
        process = cli.start(stage, "--dataset", str(dataset), *map(str, words))
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return out + err

    call("mine", "--method", "random", "--num-negatives", 12, "--output", "negatives")
    output = call("score", "--model", teacher, "--negatives", "negatives", "--output", "scores", "--precision", "fp32")
    assert "180 queries; " in output

    queries, passages, overlap = texts
    held_out = queries[220:]
    logits = CrossEncoder(teacher, torch.device("cpu"), "fp32").logits(
        [query for query in held_out for _ in passages], passages * len(held_out)
    )
    wanted = logits.reshape(len(held_out), DOCUMENTS)
    meant = np.mean([spearmanr(a, b).statistic for a, b in zip(wanted, overlap[220:], strict=True)])
    assert meant > 0.5  # the teacher's scores mean something, on queries it has not seen

    before = agreement(student, wanted, held_out, passages)
    settings = ["--model", student, "--negatives-table", "negatives", "--negatives-per-query", 8, "--query-length", 32]
    settings += ["--passage-length", 32, "--batch-size", 20, "--max-steps", 90, "--learning-rate", 3e-3]
    settings += ["--eval-steps", 30, "--precision", "fp32", "--temperature", 0.1, "--teacher", "scores"]
    settings.append("--allow-split-overlap")  # short random texts repeat, here 12 of 40
    results = {}
    for name, how in {"kl": [], "margin-mse": ["--learn-temperature"]}.items():
        output = call("train", *settings, "--loss", name, *how, "--output", name)
        assert "teacher: scores of 180 of 180 positives and of 2,160 of 2,160 hard negatives" in output
        steps = [json.loads(line) for line in (tmp_path / name / "steps.jsonl").read_text().splitlines()]
        agreed = [step["measured"]["teacher_agreement"] for step in steps if "teacher_agreement" in step["measured"]]
        assert np.mean(agreed[-5:]) > np.mean(agreed[:5])
        assert all(step["measured"].get("teacher_missing", 0) == 0 for step in steps)
        results[name] = agreement(tmp_path / name / "model", wanted, held_out, passages)
    print(f"teacher and truth {meant:.3f}; student and teacher before {before:.3f}, after {results}")
    assert results["kl"] > before + 0.2
    assert results["margin-mse"] > before + 0.2
