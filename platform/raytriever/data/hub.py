"""Data sets of the Hugging Face hub as files: `hf://datasets/ORG/NAME[@REVISION][/FOLDER]`.

Reading goes through `huggingface_hub`, which a transformers installation has; `HF_ENDPOINT`, `HF_TOKEN` and
`HF_HUB_OFFLINE` mean what they mean there.
"""

from __future__ import annotations

import os
import re
from typing import Any

from raytriever.errors import DataError

_FORM = re.compile(r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?P<folder>/.*)?")


def hub_file_system() -> Any:
    """The hub as a `pyarrow` file system; its paths are `datasets/ORG/NAME@REVISION/...`."""
    from huggingface_hub import HfFileSystem
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return PyFileSystem(FSSpecHandler(HfFileSystem(endpoint=os.environ.get("HF_ENDPOINT"))))


def pinned(uri: str) -> str:
    """The URI with its revision as a commit, so that every worker, and a later run, reads the same bytes.

    Raises:
        DataError: the URI has another form, the hub has no such data set or revision, or it cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    found = _FORM.fullmatch(uri.rstrip("/"))
    if found is None:
        raise DataError("not an address on the hub", f"--dataset {uri}", "write hf://datasets/ORG/NAME[@REVISION]")
    try:
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        commit = api.dataset_info(found["name"], revision=found["revision"], timeout=30).sha
    except RepositoryNotFoundError as error:
        raise DataError(
            "the hub has no such data set, or you may not read it",
            f"--dataset {uri}",
            "check its name; for a private one set HF_TOKEN",
        ) from error
    except RevisionNotFoundError as error:
        raise DataError(
            f"the data set has no revision {found['revision']!r}", f"--dataset {uri}", "leave it out, or name another"
        ) from error
    except OfflineModeIsEnabled as error:
        raise DataError(
            "the hub is switched off by HF_HUB_OFFLINE", f"--dataset {uri}", "unset it or give a local copy"
        ) from error
    except HfHubHTTPError as error:
        told = " ".join(str(error).split())[:300]
        raise DataError(f"the hub refused ({told})", f"--dataset {uri}", "check its name and revision") from error
    except Exception as error:  # the client's transport is one of several libraries, each with errors of its own
        raise DataError(
            f"the hub cannot be reached ({type(error).__name__})",
            f"--dataset {uri}",
            "check the network, or give the path of a local copy",
        ) from error
    return f"hf://datasets/{found['name']}@{commit}{found['folder'] or ''}"
