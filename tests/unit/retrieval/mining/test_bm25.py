"""BM25 rankings and scores, its postings, and its analyzer: terms by language, and corpora that it warns of."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import bm25s
import numpy as np
import pytest
import Stemmer

from raytriever.core import processes
from raytriever.core.errors import DataError
from raytriever.core.store.cache import cache_folder
from raytriever.core.store.unfinished_pieces import Pieces
from raytriever.data.dataset import Documents
from raytriever.data.languages import LANGUAGES, detect
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.retrieval.mining import bm25 as index_of_bm25
from raytriever.retrieval.mining import postings
from raytriever.retrieval.mining.bm25 import Bm25Index, compare_best
from raytriever.retrieval.mining.bm25_analyzer import ENGLISH_ANALYZER, Analysis, Analyzer, analyzer_line
from raytriever.retrieval.mining.postings import K1, B, Postings

TEXTS = ["the cat sat", "dogs and cats", "a running dog", "cats cats cats", "nothing alike", "the cat sat"]


def test_ranks_by_shared_stems_and_breaks_ties_by_position() -> None:
    scores, positions = Bm25Index(TEXTS).search(["CATS", "dogs run"], 6)
    assert positions[0].tolist() == [3, 0, 1, 5, 2, 4]
    assert scores[0][1] == scores[0][2] == scores[0][3] > scores[0][4] == 0
    assert positions[1].tolist()[:2] == [2, 1]
    assert scores.dtype == np.float32
    assert positions.dtype == np.int64


def test_sizes_of_results_and_texts_without_terms() -> None:
    index = Bm25Index(TEXTS)
    assert len(index) == 6
    assert index.search(["cat"], 100)[1].shape == (1, 6)
    assert index.search([], 3)[1].shape == (0, 3)
    assert index.search(["cat"], 0)[1].shape == (1, 0)
    assert Bm25Index(["the", "?"]).search(["the cat"], 2)[0].tolist() == [[0, 0]]
    pairs = index.scores_of(["cats", "zebra"], np.array([[3, -1, 4], [0, 1, -1]]))
    np.testing.assert_array_equal(pairs, np.float32([[index.scores("cats")[3], np.nan, 0], [0, 0, np.nan]]))
    assert (index.scores("cats") == index.search(["cats"], 6)[0][0][[1, 2, 4, 0, 5, 3]]).all()


def test_rankings_of_frequent_and_rare_words() -> None:
    rng = np.random.default_rng(4)
    words = np.array([f"word{n}" for n in range(3000)])
    random_keys = words[(3000 ** rng.random((20_000, 3))).astype(int) - 1]  # scores often tie
    index = Bm25Index([" ".join(row) for row in random_keys])
    queries = ["word0", "word0 word1 word0", "word2500", "word2000 word2990 word40", "word0 word2999", "zebra"]
    for k in (5, 300, 16_000):
        more = queries * 50 if k == 5 else queries  # several threads' worth
        scores, positions = index.search(more, k)
        for row, query in [*enumerate(queries), (len(more) - 1, more[-1])]:
            every = index.scores(query)
            assert positions[row].tolist() == np.argsort(-every, kind="stable")[:k].tolist()
            assert (scores[row] == every[positions[row]]).all()


@pytest.mark.slow
@pytest.mark.data
def test_scifact_scores_as_published(data_packs: Path) -> None:
    dataset = open_dataset(data_packs / "scifact", ["test"])
    positives = dataset.positives("test")
    queries = [dataset.queries.texts[query] for query in positives.queries]
    _, ranking = Bm25Index(dataset.passages()).search(queries, 10)
    discounts = 1 / np.log2(np.arange(2, 12))
    gains = [np.isin(ranking[i], positives.of(i)) @ discounts for i in range(len(positives))]
    ideal = [discounts[: len(positives.of(i))].sum() for i in range(len(positives))]
    assert np.mean(np.divide(gains, ideal)) == pytest.approx(0.676, abs=0.002)


ODD = [
    "",
    "the of",
    "Ünïcode ÜNÏCODE naïve",
    "x_1 x_1 42 4",
    "日本語のテキスト",
    "runs running ran runner",
    "don't can't",
]


def draw_texts(count: int) -> list[str]:
    rng = np.random.default_rng(5)
    words = np.array([f"word{number}" for number in range(400)] + ["the", "and", "runs", "running"])
    fractions = 1 / np.arange(1, len(words) + 1)
    lengths = rng.integers(0, 60, count)
    return [" ".join(rng.choice(words, length, p=fractions / fractions.sum())) for length in lengths] + ODD


def weights_of(index: Postings) -> dict[tuple[str, int], float]:
    return {
        (term, int(index.documents[posting])): float(index.weights[posting])
        for term, number in index.vocabulary.items()
        for posting in range(index.starts[number], index.starts[number + 1])
    }


def test_weights_equal_those_of_bm25s_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = draw_texts(500)
    tokens = bm25s.tokenize(texts, stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False)
    expected = bm25s.BM25(k1=K1, b=B)
    expected.index(tokens, show_progress=False)
    data, documents, starts = (expected.scores[name] for name in ("data", "indices", "indptr"))
    weights = {
        (term, int(documents[posting])): float(data[posting])
        for term, number in tokens.vocab.items()
        if number + 1 < len(starts)
        for posting in range(starts[number], starts[number + 1])
    }
    assert weights_of(Postings.of(texts)) == weights
    monkeypatch.setattr(postings, "BLOCK", 60)
    in_blocks = Postings.of(texts)
    assert weights_of(in_blocks) == weights
    for start, end in zip(in_blocks.starts, in_blocks.starts[1:], strict=False):
        assert (np.diff(in_blocks.documents[start:end].astype(np.int64)) > 0).all()


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Documents:
    """Corpus of five blocks that is too large for the memory."""
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    monkeypatch.setattr(postings, "BLOCK", 30)
    monkeypatch.setattr(index_of_bm25, "IN_MEMORY", 100)
    texts = draw_texts(130)
    return Documents([str(row) for row in range(len(texts))], [""] * len(texts), texts)


def test_a_large_corpus_is_indexed_in_the_cache_once(corpus: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    index, in_memory = Bm25Index.of(corpus), Bm25Index(corpus.texts)
    assert isinstance(index._postings.documents.base, np.memmap)
    queries = ["word1 word2 word3", "runner word399 word7", "nothing"]
    for value, other in zip(index.search(queries, 40), in_memory.search(queries, 40), strict=True):
        assert (value == other).all()
    assert (index.scores(queries[0]) == in_memory.scores(queries[0])).all()
    Bm25Index.of(replace(corpus, bm25_language="it"))
    assert len(list((cache_folder() / "bm25").iterdir())) == 2
    monkeypatch.setattr(postings, "_make", None)
    assert (Bm25Index.of(corpus).search(queries, 40)[1] == index.search(queries, 40)[1]).all()


def test_a_killed_command_costs_its_unfinished_blocks(corpus: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write = postings._in_processes

    def record(parts, blocks, analyzer):  # type: ignore[no-untyped-def]
        chosen = list(blocks)
        written.extend(parts.folder / name for name, _ in chosen)
        return write(parts, chosen, analyzer)

    monkeypatch.setattr(postings, "_in_processes", record)
    with monkeypatch.context() as patch:
        patch.setattr(postings, "merge", None)
        with pytest.raises(TypeError):
            Bm25Index.of(corpus)
    assert [folder.name for folder in written] == ["000000", "000001", "000002", "000003", "000004"]
    (written[3] / "rows.npy").unlink()
    written.clear()
    assert len(Bm25Index.of(corpus)) == len(corpus)
    assert [folder.name for folder in written] == ["000003"]
    assert [path.name for path in written[0].parent.parent.iterdir() if path.name.endswith("-blocks")] == []


class Deadly:
    """Object that ends the process that receives it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (1,)


def test_a_process_that_dies_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cores", lambda: 2)
    words = "rows 32,769 to 32,769 of the corpus: 3 processes died while they analyzed these documents for BM25; free"
    with pytest.raises(DataError, match=words):
        list(postings._in_processes(Pieces(tmp_path), [("000001", [Deadly()])], ENGLISH_ANALYZER))  # type: ignore[list-item]


def test_another_system_is_compared_without_what_is_left_out() -> None:
    texts = ["red apple", "green apple pie", "red red pear", "red apple", "blue plum"]
    index, queries = Bm25Index(texts), ["red apple", "plum", "nothing"]
    found, agrees = compare_best(index, queries, np.array([0, 1, -1]))
    scores = [index.scores(query) for query in queries]
    assert found[0] == pytest.approx([scores[0][0], scores[0][3], scores[0][0]])
    assert found[1] == pytest.approx([scores[1][4], 0, 0])
    assert found[2].tolist() == [0, 0, 0]
    assert agrees.tolist() == [True, False, False]
    # Without document 0 and its copy.
    left_out = [np.array([0, 3]), np.array([], np.int64), np.array([], np.int64)]
    found, agrees = compare_best(index, queries, np.array([2, 4, 0]), left_out)
    assert found[0] == pytest.approx([max(scores[0][1], scores[0][2]), min(scores[0][1], scores[0][2]), scores[0][2]])
    assert agrees.tolist() == [bool(scores[0][2] > scores[0][1]), True, False]


@pytest.mark.parametrize("copies", range(1, 9))
def test_copies_that_are_left_out_hide_no_other_document(copies: int) -> None:
    texts = [*["red apple"] * copies, "red pear", "apple pie with plums", "blue plum"]
    index = Bm25Index(texts)
    others = np.sort(index.scores("red apple")[copies:])[::-1]
    best = copies + int(np.argmax(index.scores("red apple")[copies:]))
    [found], agrees = compare_best(index, ["red apple"], np.array([best]), [np.arange(copies)])
    assert found == pytest.approx([others[0], others[1], others[0]])
    assert others[1] > 0
    assert agrees.tolist() == [True]


CHINESE = "今天天气很好，我们一起去公园散步吧。你觉得这个主意怎么样？"
JAPANESE = "東京の天気はどうですか。明日は雨が降るでしょう。傘を持って行ってください。"
THAI = "ร้านอาหารที่ดีที่สุดในกรุงเทพฯอยู่ที่ไหน ผมอยากกินส้มตำ"
KOREAN = "오늘은 날씨가 좋아서 우리는 공원에 산책하러 갔습니다. 당신은 어떻게 생각하세요?"
ENGLISH = "The quick brown foxes are jumping over a lazy dog near the river."
SEGMENTED = "今天 天气 很好 ， 我们 一起 去 公园 散步 吧 。"
ITALIAN = "La città è una delle più belle che si trovano nella regione, ma non è la più grande."


def documents_of(texts: Sequence[str], language: str | None = None) -> Documents:
    return Documents([str(row) for row in range(len(texts))], [""] * len(texts), texts, bm25_language=language)


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_words_that_look_alike_are_one_term(language: str) -> None:
    texts = ["o\ufb03ce co\u00adop zero\u200bwide ne\u0301", "office coop zerowide n\u00e9"]
    alike = Analyzer(language).analyze(texts)
    assert alike[0] == alike[1] != []


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, THAI])
def test_a_script_without_spaces_read_as_english_gets_a_warning_with_its_numbers(text: str) -> None:
    result = Analysis.of(documents_of([text] * 3, "en"))
    tokens = sum(map(len, ENGLISH_ANALYZER.analyze([text])))
    characters = len("".join(text.split()))
    assert result.warning.startswith(f"BM25 finds {tokens:.1f} tokens per document of {characters} characters, ")
    assert "% of them in scripts without spaces between words" in result.warning
    assert result.lines == [ENGLISH_ANALYZER.line, result.warning]
    assert "\n" not in result.warning


@pytest.mark.parametrize("text", [CHINESE, THAI, SEGMENTED, f"{ENGLISH} {CHINESE[:6]}", "def f(x): return x_1 + x_2"])
def test_a_recognized_language_gets_no_warning(text: str) -> None:
    assert Analysis.of(documents_of([text] * 3)).warning == ""


@pytest.mark.parametrize(
    ("text", "language"),
    [("今 天 天 气 很 好 ， 我 们 去 公 园 。 这 是 一 个 主 意 ， 你 觉 得 怎 么 样", "en"), ("x" * 400, None)],
)
def test_a_corpus_of_hardly_any_terms_gets_a_warning(text: str, language: str | None) -> None:
    warning = Analysis.of(documents_of([text], language)).warning
    assert "In every language, words are shorter, so these tokens are not words." in warning


def test_the_analyzer_is_described() -> None:
    assert ENGLISH_ANALYZER.analyze(["The Foxes are jumping"]) == [["fox", "jump"]]
    assert analyzer_line(ENGLISH_ANALYZER.settings).endswith("stop words: English; stemmer: Snowball, English")
    content = Analysis.of(documents_of([ENGLISH, "", ENGLISH])).content()
    assert content.items() >= ENGLISH_ANALYZER.settings.items()
    assert json.loads(json.dumps(content)) == content
    other = Analysis.of(documents_of([ITALIAN])).content()
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
    assert Analyzer.of(documents_of([ITALIAN], "de")).language == "de"
    assert Analyzer.of(documents_of([ITALIAN], "auto")).language == "it"


@pytest.mark.slow
@pytest.mark.data
def test_real_corpora_are_recognized(data_packs: Path) -> None:
    for name in ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh"):
        with gzip.open(data_packs / "xquad" / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
            texts = [json.loads(row)["text"] for row in file]
        assert detect(texts) == name
        assert Analysis.of(documents_of(texts[::8])).warning == ""


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
