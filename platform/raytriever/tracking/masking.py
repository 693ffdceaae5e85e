"""What may be shown of texts that may hold secrets: addresses with a password in them, and what others say of those."""

from __future__ import annotations

import os
import re

HIDDEN = "***"
# Everything before the last `@` of an address's host: a password may hold an `@` of its own.
_USER = re.compile(r"(?<=://)[^\s/?#'\"]+@")
_SECRET_NAME = re.compile(
    r"(PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIALS?|(API|ACCESS|PRIVATE|SECRET)_?KEY)(_ID)?$", re.IGNORECASE
)
_SHORTEST = 6  # shorter values are words of everyday texts


def masked(text: str) -> str:
    """A text without the users and passwords of its addresses, and without what the environment keeps secret.

    Secret is what stands in a variable whose name ends so (`..._TOKEN`, `..._PASSWORD`), and the user's part of
    `MLFLOW_TRACKING_URI`.
    """
    text = _USER.sub(f"{HIDDEN}@", text)
    for value in sorted(_secrets(), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def _secrets() -> set[str]:
    named = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    _, _, rest = os.environ.get("MLFLOW_TRACKING_URI", "").partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at:
        named |= {user, user.partition(":")[2]}
    # A variable that holds a path names a file; its content is not here.
    return {value for value in named if len(value) >= _SHORTEST and not os.path.exists(value)}
