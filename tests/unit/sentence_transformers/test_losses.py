"""Losses for the trainer of sentence-transformers have the value and the gradients of our own training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batch_ids import BatchIds, build_loss
from library_losses import (
    CASES,
    DOCUMENTS,
    MW,
    POSITIVES,
    ROWS,
    SEED,
    TEMPERATURE,
    Case,
    columns,
    equal,
    gradients,
    ids_by_hand,
    labels_of,
    load,
    loss_of,
    own_training,
    write_model,
)
from processes import run_python
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer.losses import (
    DistillKLDivLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from tiny_models import text_of

import raytriever as rt
import raytriever.sentence_transformers as library
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import DISTILLATION_LOSSES, LOSS_NAMES
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.sentence_transformers import losses
from raytriever.sentence_transformers.text_relevance import batch_relevance, text_ids
from raytriever.training.batch_loader import Batch
from raytriever.training.parallel.objective import Objective


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "model"
    write_model(path)
    return path


@pytest.fixture
def model(folder: Path) -> SentenceTransformer:
    return load(folder)


def test_the_names_that_people_search_for_are_losses(model: SentenceTransformer) -> None:
    names = {"mw": library.MannWhitneyLoss, "infonce": library.InfoNCELoss, "margin-mse": library.MarginMSELoss}
    for loss, kind in names.items():
        named = kind(model, 0.05, mini_batch_size=8)
        plain = library.RetrievalLoss(model, loss, temperature=0.05, mini_batch_size=8)
        assert named.get_config_dict() == plain.get_config_dict()
        assert named.citation == plain.citation
    assert set(library.__all__) == {"PooledAUCEvaluator", "RetrievalLoss", *(kind.__name__ for kind in names.values())}
    assert all(name in dir(library) and getattr(library, name).__doc__ for name in library.__all__)


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
@pytest.mark.parametrize(
    "case", [MW | {"distribution_weight": 0.4}, *CASES], ids=lambda case: "-".join(map(str, case.values()))
)
def test_value_and_gradients_are_those_of_our_training(case: Case, cached: bool, model: SentenceTransformer) -> None:
    ids = ids_by_hand(case)
    if case["loss"] == "rand1":  # draws depend on the tokens
        found = batch_relevance(columns(model), POSITIVES, ALONE, torch.device("cpu"), seed=SEED)
        assert found is not None
        ids = replace(ids, queries=found.queries, seed=found.seed, step=found.step)
    expected = own_training(model, case, True, ids)
    expected.backward()
    theirs = [gradient.clone() for gradient in gradients(model)]
    model.zero_grad()
    loss = loss_of(case, model, cached)
    value = loss(columns(model), labels_of(case))
    value.backward()
    assert expected.item() > 0.01
    with torch.no_grad():  # as in evaluation
        values = [value.item(), loss(columns(model), labels_of(case)).item()]
    assert values == pytest.approx([expected.item()] * 2, rel=1e-9)
    assert equal(gradients(model), theirs)


@pytest.mark.parametrize(
    ("cached", "precision"), [(False, torch.float32), (False, torch.float64), (True, torch.float64)]
)
def test_a_step_is_one_of_our_trainer(cached: bool, precision: torch.dtype, folder: Path) -> None:
    """The encoder of raytriever reads the same directory and embeds the texts; the loss is in single precision.

    In single precision both gradients are 1.1e-6 from that of double precision, and those of other chunks 9e-7 apart.
    """
    anchors = [text_of(3 + number, 50 + number) for number in range(8)]
    passages = [text_of(5 + number, 90 + number) for number in range(16)]
    retriever = load_retriever(ModelConfig(str(folder))).to(precision)
    documents = torch.arange(16)
    batch = Batch(
        queries=retriever.tokenize(anchors, "query"),
        passages=retriever.tokenize(passages, "passage"),
        relevance=BatchIds(torch.arange(8), documents[:8, None], documents).relevance(),
    )
    loss = build_loss(LossConfig("mw", temperature=TEMPERATURE), unit_length=True)
    expected = Objective(retriever, loss, "fp32").eval()(batch, ALONE).value
    expected.backward()
    model = load(folder).to(precision)
    features = [dict(model.preprocess(texts)) for texts in (anchors, passages[:8], passages[8:])]
    value = loss_of(MW, model, cached, num_positives=1)(features, None)
    value.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    used = [item.grad for name, item in retriever.named_parameters() if "pooler" not in name and item.grad is not None]
    assert equal(gradients(model), used, 1e-6)


def test_infonce_is_the_loss_of_the_library(model: SentenceTransformer) -> None:
    features = [columns(model, slice(0, 3))[value] for value in (0, 1, 3)]
    theirs = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)(features, None)
    ours = library.InfoNCELoss(model, temperature=TEMPERATURE)(features)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-9)


def test_dot_products_are_those_of_the_argument_or_of_the_model(model: SentenceTransformer) -> None:
    expected = own_training(model, MW, False, ids_by_hand(MW)).item()
    assert loss_of(MW, model, similarity_fct=util.dot_score)(columns(model)).item() == pytest.approx(expected, rel=1e-9)
    model.similarity_fn_name = "dot"
    assert loss_of(MW, model)(columns(model)).item() == pytest.approx(expected, rel=1e-9)
    model.similarity_fn_name = "euclidean"
    with pytest.raises(rt.ConfigError, match=r"RetrievalLoss\(similarity_fct\): is neither cos_sim nor dot_score"):
        loss_of(MW, model)


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("weight", [0.0, 0.4])
@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
def test_matryoshka_counts_every_dim(cached: bool, weight: float, model: SentenceTransformer) -> None:
    settings = {"matryoshka_dims": "8"} if not weight else {}
    expected = own_training(model, MW, True, ids_by_hand(MW), **settings).item()
    loss = loss_of(MW, model, cached, distribution_weight=weight)
    if weight:
        only = own_training(model, MW, True, ids_by_hand(MW), distribution_weight=weight).item()
        expected = (only - expected, only)
    value = MatryoshkaLoss(model, loss, [32, 8])(columns(model), None)
    value.backward()
    if weight:  # the regularizer of unit vectors is at least that of the whole dimension
        assert value.item() > expected[1] + 0.1 * expected[0]
    else:
        assert value.item() == pytest.approx(expected, rel=1e-9)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(model))


def test_equal_tokens_are_one_text_at_any_padding(model: SentenceTransformer) -> None:
    short, long = text_of(4, 1), text_of(20, 2)
    alone, together = model.preprocess([short]), model.preprocess([long, short])
    first, second = text_ids(alone, "a"), text_ids(together, "b")
    assert first[0] == second[1] != second[0]
    lengths = together["attention_mask"].sum(1).tolist()
    flat = torch.cat([row[:length] for row, length in zip(together["input_ids"], lengths, strict=True)])[None]
    ends = torch.tensor([0, *np.cumsum(lengths)])
    assert (text_ids({"input_ids": flat, "cu_seq_lens_q": ends}, "c") == second).all()
    assert (text_ids({"input_ids": flat[0], "offsets": ends[:-1]}, "c") == second).all()
    pictures = {"input_ids": alone["input_ids"].repeat(2, 1), "pixel_values": torch.zeros(2, 3)}
    assert len({*text_ids(pictures, "0 1"), *text_ids(pictures, "0 2")}) == 4


def test_ids_of_documents_replace_tokens(model: SentenceTransformer) -> None:
    features = columns(model)
    by_tokens = loss_of(MW, model)(features, None).item()
    ids = torch.tensor(DOCUMENTS).T
    loss = loss_of(MW, model, ids_in_labels=True)
    assert loss(columns(model), ids).item() == pytest.approx(by_tokens, rel=1e-12)
    distinct = torch.arange(ids.numel()).reshape(ids.shape)
    assert loss(columns(model), distinct).item() != pytest.approx(by_tokens, rel=1e-3)
    for labels in (None, ids.double(), ids[:, :2]):
        with pytest.raises(rt.DataError, match="the label column has no ids of the documents; give 4 whole numbers"):
            loss(columns(model), labels)


def test_draws_of_rand1_differ_between_batches(model: SentenceTransformer) -> None:
    batches = [columns(model, rows) for rows in (slice(0, 4), slice(1, 5), slice(0, 4))]
    cpu = torch.device("cpu")
    steps = [found.step for batch in batches if (found := batch_relevance(batch, POSITIVES, ALONE, cpu))]
    assert steps[0] == steps[2] != steps[1]


@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
def test_a_batch_without_negatives_has_no_loss(cached: bool, model: SentenceTransformer) -> None:
    features = columns(model, slice(0, 1))[:3]
    value = loss_of(MW, model, cached)(features, None)
    value.backward()
    assert value.item() == 0
    assert all(not gradient.any() for gradient in gradients(model))


def test_half_precision_of_the_encoder_does_not_reach_the_loss(model: SentenceTransformer) -> None:
    """The trainer may call a loss under autocast; the product of the regularizer would be rounded to bf16."""
    model.float()
    loss = library.MannWhitneyLoss(model, num_positives=POSITIVES, distribution_weight=10)
    features = columns(model)
    ids = loss._relevance(features, None)
    embeddings = [torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(index)) for index in range(5)]
    exact = loss._compute(embeddings, ids)
    with torch.autocast("cpu", torch.bfloat16):
        assert loss._compute(embeddings, ids).item() == exact.item()


def test_settings_and_citations_are_those_of_the_card(model: SentenceTransformer) -> None:
    loss = library.MannWhitneyLoss(model, temperature=0.05, reduction="sum", mini_batch_size=8)
    assert loss.get_config_dict() == {
        "loss": "mw",
        "temperature": 0.05,
        "reduction": "sum",
        "num_positives": 1,
        "similarity_fct": "cos_sim",
        "gather_across_devices": False,
        "ids_in_labels": False,
        "mini_batch_size": 8,
        "mini_batch_num_tokens": None,
        "show_progress_bar": False,
    }
    assert loss.citation.count("@misc") == 2
    assert "Optimizing What Matters" in loss.citation
    for name in LOSS_NAMES:
        plain, cached = library.RetrievalLoss(model, name), library.RetrievalLoss(model, name, mini_batch_size=32)
        assert plain.citation.count("@misc") == 1
        assert cached.citation.startswith(plain.citation)
    regularized = library.MannWhitneyLoss(model, distribution_weight=0.4)
    assert regularized.get_config_dict()["distribution_weight"] == 0.4
    assert "Out-of-Distribution" in regularized.citation
    both = library.RetrievalLoss(model, "mw+infonce")
    assert both.citation == "".join(library.RetrievalLoss(model, name).citation for name in ("mw", "infonce"))


def test_a_loss_of_a_file_trains(model: SentenceTransformer, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def hinge(scores, positives):\n    return (scores * ~positives).relu().mean()\n")
    loss = library.RetrievalLoss(model, f"{tmp_path / 'mine.py'}:hinge", temperature=1.0)
    loss(columns(model), None).backward()
    assert any(gradient.any() for gradient in gradients(model))


@pytest.mark.parametrize(
    ("loss", "arguments", "error"),
    [
        ("mw", {"temperature": 0}, "temperature): 0 is out of range"),
        ("triplet", {"margin": -1}, "margin): -1 is out of range"),
        ("mw", {"margin": 0.3}, "margin): has no effect with loss mw"),
        ("triplet", {"temperature": 0.3}, "temperature): has no effect with loss triplet"),
        ("lsepair-maxx", {}, "loss): unknown value 'lsepair-maxx'"),
        ("mw+x", {}, "loss): unknown loss 'x'"),
        ("mw+infonce", {"loss_weights": "1"}, "loss_weights): has 1 weights, but mw+infonce has 2 losses"),
        ("mw", {"num_positives": 0}, "num_positives): 0 is out of"),
        ("kl", {"mini_batch_size": 0}, "mini_batch_size): 0 is out of"),
        ("kl", {"ids_in_labels": True}, "ids_in_labels): the labels are teacher"),
        ("infonce", {"distribution_weight": -1}, "distribution_weight): -1 is out of range"),
    ],
)
def test_wrong_arguments_are_one_line(loss: str, arguments: Any, error: str, model: SentenceTransformer) -> None:
    with pytest.raises(rt.ConfigError) as raised:
        library.RetrievalLoss(model, loss, **arguments)
    assert str(raised.value).startswith(f"RetrievalLoss({error}")
    assert raised.value.remedy
    assert "\n" not in str(raised.value)


def test_wrong_batches_are_one_line(model: SentenceTransformer) -> None:
    features = columns(model)
    with pytest.raises(
        rt.DataError, match="the data set has 1 text columns, but InfoNCELoss needs an anchor column and 1 col"
    ):
        library.InfoNCELoss(model)(features[:1], None)
    with pytest.raises(rt.DataError, match=r"2 text columns.* 3 columns of positives; give columns in this order"):
        library.InfoNCELoss(model, num_positives=3)(features[:2], None)
    with pytest.raises(
        rt.DataError, match=r"there is no label column, but RetrievalLoss needs a teacher's scores; give .* 4 scores"
    ):
        library.RetrievalLoss(model, "kl")(features, None)
    with pytest.raises(rt.DataError, match=r"the labels have shape \(6, 3\)"):
        library.RetrievalLoss(model, "kl")(features, torch.zeros(6, 3))
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(rt.losses.LossInputError, match="6 of 6 query embeddings hold NaN"):
        library.InfoNCELoss(model)(columns(model), None)


@pytest.mark.parametrize("negatives", [1, 2])
def test_margins_are_labels_as_in_the_library(negatives: int, model: SentenceTransformer) -> None:
    features = [column for place, column in enumerate(columns(model)) if place != 2][: 2 + negatives]
    scores = torch.randn(ROWS, 1 + negatives, dtype=torch.float64)
    loss = library.MarginMSELoss(model)
    expected = loss(features, scores).item()
    margins = scores[:, :1] - scores[:, 1:]
    assert loss(features, margins).item() == pytest.approx(expected, rel=1e-9)
    if negatives == 1:
        assert loss(features, margins[:, 0]).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", DISTILLATION_LOSSES)
def test_labels_that_would_train_nothing_are_refused(
    loss: str, model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, lines = columns(model), []
    monkeypatch.setattr(losses.logger, "warning_once", lines.append)
    with pytest.raises(rt.DataError, match=r"one column of documents, .* train nothing; give columns in this order"):
        library.RetrievalLoss(model, loss)(features[:2], torch.zeros(ROWS, 1))
    scores = torch.randn(ROWS, 4)
    with pytest.raises(rt.DataError, match="all labels are NaN or infinite, so"):
        library.RetrievalLoss(model, loss)(features, torch.full_like(scores, torch.nan))
    with pytest.raises(rt.DataError, match=r"a label for \w+ is infinite"):
        library.RetrievalLoss(model, loss)(features, scores.index_fill(0, torch.tensor([1]), torch.inf))
    assert lines == []
    # A row without scores is left out: the others have the loss that they have alone.
    without = scores.index_fill(0, torch.tensor([ROWS - 1]), torch.nan)
    alone = columns(model, slice(0, ROWS - 1))
    assert library.RetrievalLoss(model, loss)(features, without).item() == pytest.approx(
        library.RetrievalLoss(model, loss)(alone, scores[:-1]).item(), rel=1e-5
    )
    assert lines == ["RetrievalLoss: labels have NaN. Documents without a score are left out of the loss."]


@pytest.mark.parametrize("loss", ["cosent", "mw+bce"])
def test_graded_relevance_is_a_number_a_row_or_one_for_each_document(
    loss: str, model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, lines, built = columns(model), [], library.RetrievalLoss(model, loss)
    monkeypatch.setattr(losses.logger, "warning_once", lines.append)
    labels = torch.linspace(0, 1, ROWS)
    expected = built(features[:2], labels[:, None]).item()
    assert built(features[:2], labels).item() == expected != built(features[:2], None).item()
    table = torch.full((ROWS, 4), torch.nan)
    table[:, 0] = 1
    with_default = library.RetrievalLoss(model, loss)(features, table).item()
    assert with_default == pytest.approx(built(features, None).item(), rel=1e-6)
    with pytest.raises(
        rt.DataError, match=r"the labels have shape \(6, 3\), but .* graded relevance; give 4 numbers per row"
    ):
        built(features, table[:, :3])
    for outside in (-0.5, 3):
        with pytest.raises(rt.DataError, match=f"is {outside}, not between 0 and 1; scale the labels to 0 to 1"):
            built(features, table.fill_(outside))
    assert lines == []
    assert torch.isfinite(built(features, table.fill_(0)))
    assert lines == ["RetrievalLoss: all labels of a batch are 0, so none of its documents is relevant."]


def test_margins_need_negatives(model: SentenceTransformer) -> None:
    with pytest.raises(rt.DataError, match="all 4 columns of documents are positives"):
        library.MarginMSELoss(model, num_positives=4)(columns(model), torch.zeros(ROWS, 4))


def test_the_librarys_kl_has_the_square_of_the_temperature_more(model: SentenceTransformer) -> None:
    texts = [[text_of(5 + row, 10 * column + row) for row in range(ROWS)] for column in range(4)]
    features, scores = [dict(model.preprocess(column)) for column in texts], torch.randn(ROWS, 3)
    theirs = DistillKLDivLoss(model, similarity_fct=util.pairwise_dot_score, temperature=0.5)(features, scores)
    ours = loss_of(
        {"loss": "kl", "teacher_temperature": 0.5},
        model,
        temperature=0.5,
        num_positives=1,
        similarity_fct=util.dot_score,
    )
    assert theirs.item() == pytest.approx(0.25 * ours(features, scores).item(), rel=1e-5)


def test_a_loss_is_no_part_of_the_module_but_its_bias_is_trained(model: SentenceTransformer) -> None:
    assert all(name.startswith("model.") for name in library.MannWhitneyLoss(model).state_dict())
    plain, cached = (loss_of({"loss": "bce", "threshold": 0.2}, model, value) for value in (False, True))
    for loss, fractions in ((plain, (1.0,)), (cached, (0.25, 0.75))):  # shares as with gradient accumulation
        assert {name for name in loss.state_dict() if not name.startswith("model.")} == {"bias"}
        for fraction in fractions:
            (loss(columns(model)) * fraction).backward()
    assert float(cached.bias.grad) == pytest.approx(float(plain.bias.grad), rel=1e-6)


WITHOUT_THE_LIBRARY = """
import sys
from importlib import metadata
import raytriever as rt

def version(name):
    if not installed:
        raise metadata.PackageNotFoundError(name)
    return installed

found, metadata.version = metadata.version, version
for installed in ("", "5.1.0"):
    try:
        import raytriever.sentence_transformers
    except rt.ConfigError as error:
        print(error)
metadata.version = found
import raytriever.sentence_transformers
print({"torch", "sentence_transformers"} & set(sys.modules))
"""


def test_without_the_library_one_line_names_the_remedy_and_an_import_loads_nothing_heavy() -> None:
    done = run_python("-c", WITHOUT_THE_LIBRARY)
    remedy = "pip install 'raytriever[sentence-transformers]'"
    lines = [f"sentence-transformers {text}; {remedy}" for text in ("is not installed", "5.1.0 is too old")]
    assert done.stdout.splitlines() == [*(f"raytriever.sentence_transformers: {line}" for line in lines), "set()"]
