"""A prepared data set that somebody else made: right digests do not make its files trusted."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raytriever.data.prepare import Request, prepare
from raytriever.data.tokenise import Tokenisation
from raytriever.storage import committed_directory


@pytest.fixture
def prepared(small: Path, words: Tokenisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty documents and queries, prepared and tokenised."""
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    return prepare(Request(str(small), words), output=tmp_path / "prepared")


def seal(folder: Path) -> None:
    """Give a changed directory a manifest with right sizes and digests."""
    meta = json.loads((folder / "manifest.json").read_bytes())["meta"]
    moved = folder.with_name("changed")
    folder.rename(moved)
    (moved / "manifest.json").unlink()
    with committed_directory(folder, meta) as aside:
        for file in sorted(moved.rglob("*")):
            target = aside / file.relative_to(moved)
            target.mkdir() if file.is_dir() else target.write_bytes(file.read_bytes())


def rewrite(file: Path, columns: dict[str, Any]) -> None:
    table = pa.table(columns)
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, (str(self.trace), 0o777, True)


def columns_of(file: Path) -> dict[str, Any]:
    with pa.ipc.open_file(pa.BufferReader(file.read_bytes())) as reader:
        table = reader.read_all()
    return {name: table[name].combine_chunks() for name in table.column_names}


@pytest.mark.parametrize("registered", [True, False])
def test_pickled_objects_in_place_of_texts_are_refused_before_they_run(
    prepared: Path, tmp_path: Path, registered: bool
) -> None:
    [file] = (prepared / "documents").glob("*.arrow")
    columns = columns_of(file)
    storage = pa.array([pickle.dumps(Payload(tmp_path / "trace"))] * 40, pa.large_binary())
    field = pa.field("text", storage.type, metadata={"ARROW:extension:name": "ray.data.arrow_pickled_object"})
    schema = pa.schema([("id", pa.large_string()), ("title", pa.large_string()), field])
    table = pa.Table.from_arrays([columns["id"], columns["title"], storage], schema=schema)
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, schema) as writer:
        writer.write_table(table)
    seal(prepared)
    program = (
        "import sys\n"
        + ("import ray.data._internal.object_extensions.arrow as ray_types\n" if registered else "")
        + "from raytriever.data.open import open_dataset\n"
        "from raytriever.errors import UserError\n"
        "try:\n    print(list(open_dataset(sys.argv[1], ['train']).documents.texts)[0])\n"
        "except UserError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, prepared], capture_output=True, text=True, check=True)
    assert not (tmp_path / "trace").exists()
    assert done.stdout == (
        f"{prepared}/documents/{file.name}: column 'text' has the extension type 'ray.data.arrow_pickled_object', "
        "expected 'large_string'; prepare the data set again from its source\n"
    )
