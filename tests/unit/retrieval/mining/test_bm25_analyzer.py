"""BM25's analyzer: its terms by language, and the corpora that it warns of."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from raytriever.data.dataset import Documents
from raytriever.data.languages import LANGUAGES, detect
from raytriever.retrieval.mining.bm25_analyzer import ENGLISH_ANALYZER, Analysis, Analyzer, analyzer_line

CHINESE = "今天天气很好，我们一起去公园散步吧。你觉得这个主意怎么样？"
JAPANESE = "東京の天気はどうですか。明日は雨が降るでしょう。傘を持って行ってください。"
THAI = "ร้านอาหารที่ดีที่สุดในกรุงเทพฯอยู่ที่ไหน ผมอยากกินส้มตำ"
KOREAN = "오늘은 날씨가 좋아서 우리는 공원에 산책하러 갔습니다. 당신은 어떻게 생각하세요?"
ENGLISH = "The quick brown foxes are jumping over a lazy dog near the river."
SEGMENTED = "今天 天气 很好 ， 我们 一起 去 公园 散步 吧 。"
ITALIAN = "La città è una delle più belle che si trovano nella regione, ma non è la più grande."


def corpus(texts: Sequence[str], language: str | None = None) -> Documents:
    return Documents([str(row) for row in range(len(texts))], [""] * len(texts), texts, bm25_language=language)


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_words_that_look_alike_are_one_term(language: str) -> None:
    texts = ["o\ufb03ce co\u00adop zero\u200bwide ne\u0301", "office coop zerowide n\u00e9"]
    alike = Analyzer(language).analyze(texts)
    assert alike[0] == alike[1] != []


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, THAI])
def test_a_script_without_spaces_read_as_english_gets_a_warning_with_its_numbers(text: str) -> None:
    result = Analysis.of(corpus([text] * 3, "en"))
    tokens = sum(map(len, ENGLISH_ANALYZER.analyze([text])))
    characters = len("".join(text.split()))
    assert result.warning.startswith(f"BM25 finds {tokens:.1f} tokens per document of {characters} characters, ")
    assert "% of them in scripts without spaces between words" in result.warning
    assert result.lines == [ENGLISH_ANALYZER.line, result.warning]
    assert "\n" not in result.warning


@pytest.mark.parametrize("text", [CHINESE, THAI, SEGMENTED, f"{ENGLISH} {CHINESE[:6]}", "def f(x): return x_1 + x_2"])
def test_a_recognized_language_gets_no_warning(text: str) -> None:
    assert Analysis.of(corpus([text] * 3)).warning == ""


@pytest.mark.parametrize(
    ("text", "language"),
    [("今 天 天 气 很 好 ， 我 们 去 公 园 。 这 是 一 个 主 意 ， 你 觉 得 怎 么 样", "en"), ("x" * 400, None)],
)
def test_a_corpus_of_hardly_any_terms_gets_a_warning(text: str, language: str | None) -> None:
    warning = Analysis.of(corpus([text], language)).warning
    assert "In every language, words are shorter, so these tokens are not words." in warning


def test_the_analyzer_is_described() -> None:
    assert ENGLISH_ANALYZER.analyze(["The Foxes are jumping"]) == [["fox", "jump"]]
    assert analyzer_line(ENGLISH_ANALYZER.settings).endswith("stop words: English; stemmer: Snowball, English")
    content = Analysis.of(corpus([ENGLISH, "", ENGLISH])).content()
    assert content.items() >= ENGLISH_ANALYZER.settings.items()
    assert json.loads(json.dumps(content)) == content
    other = Analysis.of(corpus([ITALIAN])).content()
    assert analyzer_line(other).startswith("Analyzer of BM25 for Italian, --bm25-language it: terms of words, in NFKC")


@pytest.mark.parametrize(
    ("language", "text", "terms"),
    [
        ("zh", "今天天气，ＡＢＣ 123 好", ["今天", "天天", "天气", "abc", "123", "好"]),  # as Lucene's CJKAnalyzer
        ("ko", "날씨가 Seoul", ["날씨", "씨가", "seoul"]),
        ("th", "กินส้ม", ["กิน", "ินส", "นส้", "ส้ม"]),
        ("it", "Dell'acqua, gli uomini nella città", ["acqua", "uomin", "citt"]),
        ("ar", "الأَوَّلُ إلى المدينــة", ["اول", "ال", "مدينه"]),
        ("hi", "किताबें", ["किताब"]),  # vowel signs are parts of the word
        ("tr", "İSTANBUL", ["istanbul"]),
        ("other", "Ukraïnskou ǉ 7", ["ukraïnskou", "lj", "7"]),
    ],
)
def test_the_terms_of_a_language(language: str, text: str, terms: list[str]) -> None:
    analyzer = Analyzer(language)
    assert analyzer.analyze([text]) == [terms]
    numbered, ids, lengths = analyzer.number_terms([text, "", text])
    assert [numbered[number] for number in ids] == 2 * terms
    assert lengths.tolist() == [len(terms), 0, len(terms)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_its_stemmer(language: str) -> None:
    assert Analyzer(language).analyze(["123"])[0]
    assert ("Snowball" in Analyzer(language).line) == LANGUAGES[language].has_stemmer


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (ENGLISH, "en"), (CHINESE, "zh"), (JAPANESE, "ja"), (THAI, "th"), (KOREAN, "ko"), (ITALIAN, "it"),
        ("Це є українська мова, її знають мільйони людей", "other"), ("Мы были рады, что это не она", "ru"),
        ("این یک کتاب خوب است که من در گذشته خوانده‌ام و چند پرسش دارم", "fa"),
        ("The contract of the lessee and the lessor: der Vertrag und die Mieter, von den Banken in der Stadt", "en"),
        ("", "en"), ("1 2 3", "en"), ("x" * 400, "en"),
    ],
)  # fmt: skip
def test_a_language_is_recognized(text: str, language: str) -> None:
    assert detect([text]) == language


def test_the_language_that_a_user_names_is_used() -> None:
    assert Analyzer.of(corpus([ITALIAN], "de")).language == "de"
    assert Analyzer.of(corpus([ITALIAN], "auto")).language == "it"


@pytest.mark.slow
@pytest.mark.data
def test_real_corpora_are_recognized(data_packs: Path) -> None:
    for name in ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh"):
        with gzip.open(data_packs / "xquad" / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
            texts = [json.loads(row)["text"] for row in file]
        assert detect(texts) == name
        assert Analysis.of(corpus(texts[::8])).warning == ""


def test_stop_words_start_no_other_framework(tmp_path: Path) -> None:
    """The package of the stop words starts JAX where it is installed, which takes most of the memory of a GPU."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise SystemExit('JAX was imported')")
    line = "print(Analyzer().analyze(['the cat and the hat'])[0])"
    code = f"from raytriever.retrieval.mining.bm25_analyzer import Analyzer; {line}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.strip() == "['cat', 'hat']"
