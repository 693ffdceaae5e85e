"""BM25's analyser warns for corpora whose terms are not words, and only for those."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from raytriever.mining.analyser import ANALYSER, Analysis, analyse, analyser_line

CHINESE = "今天天气很好，我们一起去公园散步吧。你觉得这个主意怎么样？"
JAPANESE = "東京の天気はどうですか。明日は雨が降るでしょう。傘を持って行ってください。"
THAI = "ร้านอาหารที่ดีที่สุดในกรุงเทพฯอยู่ที่ไหน ผมอยากกินส้มตำ"
KOREAN = "오늘은 날씨가 좋아서 우리는 공원에 산책하러 갔습니다. 당신은 어떻게 생각하세요?"
ENGLISH = "The quick brown foxes are jumping over a lazy dog near the river."
SEGMENTED = "今天 天气 很好 ， 我们 一起 去 公园 散步 吧 。"


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, THAI])
def test_a_script_without_spaces_gets_a_warning_with_its_numbers(text: str) -> None:
    result = Analysis.of([text] * 3)
    tokens = sum(map(len, analyse([text])))
    characters = len("".join(text.split()))
    assert result.warning.startswith(f"BM25 finds {tokens:.1f} tokens per document of {characters} characters, ")
    assert "% of them of scripts without spaces between words" in result.warning
    assert "\n" not in result.warning


@pytest.mark.parametrize("text", [ENGLISH, KOREAN, SEGMENTED, f"{ENGLISH} {CHINESE[:6]}", "def f(x): return x_1 + x_2"])
def test_words_get_no_warning(text: str) -> None:
    assert Analysis.of([text] * 3).warning == ""


@pytest.mark.parametrize(
    "text", ["今 天 天 气 很 好 ， 我 们 去 公 园 。 这 是 一 个 主 意 ， 你 觉 得 怎 么 样", "x" * 400]
)
def test_a_corpus_of_hardly_any_terms_gets_a_warning(text: str) -> None:
    assert "Words are shorter in every language, so these are not words." in Analysis.of([text]).warning


def test_the_analyser_is_described() -> None:
    assert analyse(["The Foxes are jumping"]) == [["fox", "jump"]]
    assert analyser_line().endswith("stop words: English; stemmer: Snowball, English")
    content = Analysis.of([ENGLISH, "", CHINESE]).content()
    assert content.items() >= ANALYSER.items()
    assert json.loads(json.dumps(content)) == content


@pytest.mark.data
def test_real_corpora_get_a_warning_where_words_are_not_spaced(data_packs: Path) -> None:
    warned = {}
    for name in ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh"):
        with gzip.open(data_packs / "xquad" / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
            warned[name] = bool(Analysis.of([json.loads(row)["text"] for row in file]).warning)
    assert {name for name, one in warned.items() if one} == {"th", "zh"}
