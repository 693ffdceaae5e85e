"""Names of systems: trees and back, and wrong names in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.core.errors import UserError
from raytriever.evaluation.requested_models import read_models
from raytriever.evaluation.system_names import (
    SYSTEM,
    Bm25,
    Fusion,
    Reranking,
    RunFile,
    VectorFolder,
    parse_system,
    split_label,
    system_text,
)
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.external_encoders.endpoint_settings import EncoderConfig


def test_a_name_is_a_tree_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = ModelConfig("minilm", similarity="dot")
    wanted = {
        "bm25": Bm25(),
        "minilm": encoder,
        "vectors:a/b": VectorFolder("a/b", "dot"),
        "run:a.trec": RunFile("a.trec"),
        "bm25+minilm": Fusion((Bm25(), encoder)),
        "bm25+minilm+run:x": Fusion((Bm25(), encoder, RunFile("x"))),
        "vectors:a+run:x:weighted": Fusion((VectorFolder("a", "dot"), RunFile("x")), True),
        "minilm>org/judge": Reranking(encoder, "org/judge", 100),
        "bm25+minilm>org/judge@20>other": Reranking(
            Reranking(Fusion((Bm25(), encoder)), "org/judge", 20), "other", 100
        ),
    }
    for name, tree in wanted.items():
        assert parse_system(name, ModelConfig(similarity="dot")) == tree
        assert system_text(tree) == name
    assert split_label("mine=bm25+minilm") == ("mine", "bm25+minilm")
    (tmp_path / "a+b>c").mkdir()
    assert parse_system("a+b>c") == EncoderConfig(model="a+b>c")
    assert SYSTEM("mine=~/a+run:~/b") == f"mine={Path('~/a').expanduser()}+run:{Path('~/b').expanduser()}"
    names = ["bm25+runs/a/model:weighted", "bm25+runs/b/model:weighted", "minilm>org/judge@9", "run:x/a.trec", "y=bm25"]
    assert [model.name for model in read_models(names, ModelConfig())] == [
        "bm25_a_weighted",
        "bm25_b_weighted",
        "minilm_judge_9",
        "a.trec",
        "y",
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("bm25+bm25", "model bm25+bm25: fuses bm25 with itself; give two different systems"),
        ("bm25+", "model bm25+: names fewer than two systems; write A+B, such as bm25+minilm"),
        ("bm25:weighted", "names fewer than two systems"),
        ("a+b+c:weighted", "gives weights to 3 systems; write A+B:weighted"),
        ("minilm>", "has nothing after '>'; write SYSTEM>CROSS-ENCODER@100"),
        (">org/judge", "has nothing before '>'"),
        ("minilm>org/judge@0", "reranks no document"),
        ("run:", "names no path; write run:PATH"),
        (
            "minilm>./nothing",
            "model ./nothing: no such directory; give the directory of a cross-encoder, or a hub name",
        ),
        ("bm25+./nothing", "model ./nothing: no such directory"),
        ("vectors:nothing", "model nothing: no such folder"),
        ("run:nothing.trec", "model nothing.trec: no such file; give the path of a TREC run"),
    ],
)
def test_a_wrong_name_is_one_line(name: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        SYSTEM.check(SYSTEM(name), "model")
    assert line in str(caught.value)
