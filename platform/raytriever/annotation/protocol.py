"""What the bodies and headers of a chat-completions service say, whatever it sends."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime


class Passing(Exception):
    """A failure that may be over when the request is sent again; `wait` is the least number of seconds till then."""

    def __init__(self, what: str, wait: float = 0.0) -> None:
        super().__init__(what)
        self.wait = wait


@dataclass(frozen=True)
class Reply:
    """What a model answered.

    Args:
        content: the text; empty where there is none.
        finish: why it ended: `stop`, `length`, `content_filter`...
        read, written: tokens as the service counted them; None where it did not.
    """

    content: str
    finish: str
    read: int | None
    written: int | None


def read_reply(body: bytes) -> Reply:
    """The reply that a body holds; raises `Passing` where it holds none."""
    try:
        whole = json.loads(body)
        choice = whole["choices"][0]
        message, usage = choice["message"], whole.get("usage") or {}
        content = message.get("content")
        if not isinstance(content, str | None) or not isinstance(usage, dict):
            raise TypeError
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Passing("no chat completion") from error
    read, written = (count if type(count) is int and count >= 0 else None for count in counts)
    finish = "refusal" if message.get("refusal") else str(choice.get("finish_reason") or "stop")
    return Reply(content or "", finish[:40], read, written)


def error_message(body: bytes) -> str:
    """What an error's body says, in the forms that services have for it."""
    try:
        found = json.loads(body)
        error = found.get("error", found.get("detail", found.get("message", found)))
        if isinstance(error, dict):
            told = [str(error[name]) for name in ("message", "code", "param") if error.get(name)]
            return " ".join(told) or json.dumps(error)
        return error if isinstance(error, str) else json.dumps(error)
    except (ValueError, AttributeError, RecursionError):
        return body[:400].decode(errors="replace")


def model_names(body: bytes) -> list[str]:
    """The models that a service lists; none where it says nothing of the kind."""
    try:
        return [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def retry_after(value: str | None) -> float:
    """Seconds; the header gives them, or a date. 0 where it gives neither."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return seconds if 0 < seconds < 1e9 else 0.0
