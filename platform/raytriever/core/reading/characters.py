"""Normalization of characters that look alike: composed and decomposed accents, ligatures, invisible characters."""

from __future__ import annotations

import re
import unicodedata

# The ligatures U+FB00 to U+FB06, which occur in PDF files that LaTeX made.
_LIGATURES = str.maketrans({point: unicodedata.normalize("NFKC", chr(point)) for point in range(0xFB00, 0xFB07)})
# A soft hyphen at the end of a line joins two halves of a word. Persian, Hindi, Khmer and emoji need joiners and
# zero-width spaces, so these are kept after a character of such a script.
_INVISIBLE = re.compile(
    "\u00ad(?:\\s*\n\\s*)?|[\u180e\u2060\ufeff]|(?<![\u0590-\u1dff\ufe0f\U0001f000-\U0001faff])[\u200b-\u200d]"
)


def plain_characters(text: str) -> str:
    """Return a text with composed accents (NFC), separate letters for ligatures, and no invisible characters."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", remove_invisible(text).translate(_LIGATURES))


def remove_invisible(text: str) -> str:
    """Return a text without soft hyphens and without characters that have no width and no meaning."""
    return _INVISIBLE.sub("", text)
