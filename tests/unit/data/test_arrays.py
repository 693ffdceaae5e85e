from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.data.formats.rows import read_elements
from raytriever.errors import DataError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='"\\[]{},: \nab\u2028é'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='"\\[]{}a'), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raytriever.data.formats.rows._BEGIN", 8)


def rows(file: Path, size: int = 1 << 20) -> list[bytes]:
    results = []
    for first, payload in read_elements(str(file), size):
        assert first == len(results) + 1
        assert payload.endswith(b"\n")
        results += payload.split(b"\n")[:-1]
    return results


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.dictionaries(st.text(alphabet='"\\[]{}a', max_size=4), VALUES, max_size=3), min_size=1),
    size=st.integers(1, 60),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
)
def test_any_array_comes_back_object_by_object(
    tmp_path_factory: pytest.TempPathFactory, values: list[object], size: int, indent: int | None, ascii_only: bool
) -> None:
    file = tmp_path_factory.mktemp("array") / "a.json"
    file.write_text(json.dumps(values, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    assert [json.loads(row) for row in rows(file, size)] == values


def test_a_bad_object_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf [ {"a": 1}, {"a": nul}, \n 7, {"b": "]}"} , [1] ]\n')
    assert rows(tmp_path / "a.json", 3) == [b'{"a": 1}', b'{"a": nul}', b'7, {"b": "]}"}', b"[1]"]


@pytest.mark.parametrize("end", [1, 2, 5, 20])
def test_a_truncated_array_is_reported_with_its_last_row(tmp_path: Path, end: int) -> None:
    content = json.dumps([{"a": "x" * 30}, {"b": "y" * 30}]).encode()
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(content[:-end]))
    with pytest.raises(DataError, match=rf"a\.json\.gz: the JSON array is cut off after row {2 if end == 1 else 1}"):
        rows(tmp_path / "a.json.gz")


def test_a_file_without_an_array_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match=r"begins with '\{\"a\": 1\}', not with a JSON array"):
        rows(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(" [ ] ")
    with pytest.raises(DataError, match="no row in it; give an array of JSON objects"):
        rows(tmp_path / "a.json")
