"""What a user can mend travels between processes as text: nothing is unpickled for it."""

from __future__ import annotations

import json

from raytriever.errors import DataError, ModelError, StorageError, UserError

_KINDS = {one.__name__: one for one in (DataError, ModelError, StorageError)}


def told(mistake: UserError) -> str:
    """A mistake as JSON: its kind, what, where, remedy."""
    return json.dumps([type(mistake).__name__, mistake.what, mistake.where, mistake.remedy])


def mistake_of(text: str) -> UserError:
    """The mistake that `told` made a text of, of the kind it was where every process knows that kind."""
    kind, what, where, remedy = json.loads(text)
    return _KINDS.get(kind, UserError)(what, where, remedy)
