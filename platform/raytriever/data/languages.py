"""Languages of texts, and their detection by script and by function words. This module imports quickly.

If a script has one main language (Greek, Thai, Korean), the script decides. Otherwise, letters or function words decide
between the script's languages. A language that is not recognized is treated as English."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

AUTO, ENGLISH, OTHER = "auto", "en", "other"
SAMPLE_SIZE, SAMPLE_CHARACTERS = 200, 1_000  # number of texts in the sample, and number of characters read of each
# Minimum fraction of function words among the words of a text in the Latin script.
_LEAST_FRACTION = 0.08
# Minimum fraction of a non-Latin script's letters among all letters.
_LEAST_LETTERS = 0.3


@dataclass(frozen=True)
class Language:
    """Language that BM25 can analyze. `name` in lower case is its Snowball stemmer, if it has one. `ngram` is 0 if the
    terms are words; otherwise the terms are n-grams of `ngram` characters. `function_words` help to detect it."""

    name: str
    has_stemmer: bool = True
    ngram: int = 0
    function_words: str = ""


LANGUAGES = {
    "en": Language("English", function_words="the of and to in is that for was with as by on are from this it be"),
    "ar": Language("Arabic"),
    "ca": Language("Catalan", function_words="el la de i que els les per un una amb és del en al va dels seu"),
    "cs": Language("Czech", function_words="a v se na je že s z do byl který jako po ve od však jeho také"),
    "da": Language("Danish", function_words="og i at det en er af på til den for med som de ikke blev et var"),
    "de": Language("German", function_words="der die und in den von zu das mit sich des auf für ist im dem nicht ein"),
    "el": Language("Greek"),
    "es": Language("Spanish", function_words="de la que el en y los se del las por un con una para es su al lo"),
    "et": Language("Estonian", function_words="ja on ei et kui oli see ka mis ning aga oma või ta välja kes seda"),
    "eu": Language("Basque", function_words="eta da zen ere du bat izan zuen dira ez baina dute egin bere beste"),
    "fi": Language("Finnish", function_words="ja on oli että ei se myös hän joka mutta sekä kun ovat tai jonka"),
    "fr": Language("French", function_words="de la le et les des en un du une est que dans pour par au qui sur il"),
    "ga": Language("Irish", function_words="an na agus ar a i is go bhí le sé tá do leis ag don ó atá"),
    "hi": Language("Hindi"),
    "hu": Language("Hungarian", function_words="a az és hogy nem is egy volt meg csak azt mint el ez de ha amely"),
    "hy": Language("Armenian"),
    "id": Language("Indonesian", function_words="yang dan di dari ini dengan untuk pada adalah dalam itu oleh ke"),
    "it": Language("Italian", function_words="di che la il e un in a per è una del della con si i dei le nel alla"),
    "ja": Language("Japanese", has_stemmer=False, ngram=2),
    "ko": Language("Korean", has_stemmer=False, ngram=2),
    "lt": Language("Lithuanian", function_words="ir yra buvo kad su iš į kaip apie bei po tai jis tik ar nuo už"),
    "nl": Language("Dutch", function_words="de van het een en in is dat op te zijn met voor die door aan werd er"),
    "no": Language("Norwegian", function_words="og i at det en er av på til den for med som de ikke ble et var"),
    "fa": Language("Persian"),
    "pl": Language("Polish", function_words="w i na z się do że jest nie to przez jako od po który oraz był"),
    "pt": Language("Portuguese", function_words="de a que o e do da em um para com uma os no se na por mais as"),
    "ro": Language("Romanian", function_words="de în și a la cu din pe care este o un pentru au fost că mai al"),
    "ru": Language("Russian"),
    "sr": Language("Serbian"),
    "sv": Language("Swedish", function_words="och i att det en är av på till den för med som de inte ett var han"),
    "ta": Language("Tamil"),
    "th": Language("Thai", has_stemmer=False, ngram=3),
    "tr": Language("Turkish", function_words="ve bir bu da de için ile olarak olan daha çok en sonra gibi kadar"),
    "vi": Language("Vietnamese", False, 0, "và của là có trong các được một cho không những với người này đã"),
    "zh": Language("Chinese", has_stemmer=False, ngram=2),
    OTHER: Language("another language", has_stemmer=False),
}

# Letters of each script, by the language that the script suggests; OTHER if that language has no stemmer.
_SCRIPTS = {
    "ar": "\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefc",
    "ru": "\u0400-\u052f",
    "el": "\u0370-\u03ff\u1f00-\u1fff",
    "hi": "\u0900-\u097f",
    "hy": "\u0530-\u058f",
    "ta": "\u0b80-\u0bff",
    "ko": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "ja": "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "zh": "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    "th": "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff",  # with Lao, Tibetan, Burmese and Khmer
    OTHER: "\u0590-\u05ff\u0980-\u0b7f\u0c00-\u0dff\u10a0-\u10ff\u1200-\u137f",
}
# Letters that only one language of a script has. If the letters of two are equally frequent, the first is chosen.
_LANGUAGES_OF_SCRIPT = {"ar": {"fa": "پچژگ", "ar": "ةىكي", OTHER: "ٹڈڑےھ"}}
_LANGUAGES_OF_SCRIPT["ru"] = {OTHER: "іїєґ", "sr": "јљњћђ", "ru": "ыэё"}
UNSPACED = _SCRIPTS["th"] + _SCRIPTS["zh"] + _SCRIPTS["ja"]  # scripts without spaces between words
NGRAMS = UNSPACED + _SCRIPTS["ko"]
_LETTERS = {code: re.compile(f"[{letters}]") for code, letters in _SCRIPTS.items()}
_WORD = re.compile(r"[^\W\d_]+")


def detect(texts: Sequence[str]) -> str:
    """Return the code of the language that most of a corpus is written in; English if none is recognized."""
    step = max(1, len(texts) // SAMPLE_SIZE)
    sample = "\n".join(texts[row][:SAMPLE_CHARACTERS] for row in range(0, len(texts), step)[:SAMPLE_SIZE]).lower()
    words = _WORD.findall(sample)
    total = sum(map(len, words))
    counts = {code: len(letters.findall(sample)) for code, letters in _LETTERS.items()}
    # If more than a tenth of all Han and kana characters are kana, the text is Japanese.
    written = counts["zh"] + counts["ja"]
    counts |= {"zh": 0, "ja": written} if 10 * counts["ja"] > written else {"zh": written, "ja": 0}
    script = max(counts, key=lambda code: counts[code])
    if counts[script] < _LEAST_LETTERS * max(1, total):
        return _by_function_words(words)
    letters_of = _LANGUAGES_OF_SCRIPT.get(script, {script: ""})
    return max(letters_of, key=lambda code: sum(map(sample.count, letters_of[code])))


def _by_function_words(words: Sequence[str]) -> str:
    """Return the language with the most function words; English if their fraction is low, or close to English's."""
    counts = Counter(words)
    fractions = {
        code: sum(counts[word] for word in language.function_words.split()) / max(1, len(words))
        for code, language in LANGUAGES.items()
        if language.function_words
    }
    best = max(fractions, key=lambda code: fractions[code])
    return best if fractions[best] >= _LEAST_FRACTION and fractions[best] > 1.5 * fractions[ENGLISH] else ENGLISH
