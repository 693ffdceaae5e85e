"""What a command says of a store that refuses, is away, is silent, or is none; the store is a real S3 server."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from object_store import READER, ObjectStore, object_store

from raytriever.api.models import path_of
from raytriever.core.errors import StorageError
from raytriever.core.store import object_stores
from raytriever.core.store.commit import complete, one_writer, write_atomically
from raytriever.core.store.disk import check_writable
from raytriever.data.formats.file_rows import numbered_rows


@pytest.mark.parametrize("credentials", [READER, ("nobody", "wrong")])
def test_credentials_that_may_not_write_are_found_first(
    server: ObjectStore,
    machine: Callable[[str], None],
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    credentials: tuple[str, str],
) -> None:
    server.use(monkeypatch, credentials)
    with pytest.raises(StorageError, match=rf"^{uri}: the store refuses \(.*; check the name of the bucket"):
        check_writable(path_of(uri))
    with pytest.raises(StorageError, match=rf"^{uri}: the store refuses"), one_writer(path_of(uri)):
        pass


class _ReportedError(Exception):
    """Ends a wait with the line that it reports."""


def test_a_full_store_is_one_that_answers(
    machine: Callable[[str], None], uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def report(line: str) -> None:
        raise _ReportedError(line)

    def fill() -> None:
        for number in range(50):
            object_stores.write_object(path_of(uri) / str(number), bytes(1 << 20))

    monkeypatch.setattr(object_stores, "_report", report)
    (tmp_path / "store").mkdir()
    with object_store(tmp_path / "store", "-volume.max=1", "-master.volumeSizeLimitMB=1") as full:
        full.use(monkeypatch)
        with pytest.raises(
            _ReportedError, match=r"^s3://bucket: the store answers with an error, as a full one does \("
        ):
            fill()
        monkeypatch.setattr(object_stores, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(StorageError, match=r"the store has answered with errors for .*; free space in it if it is"):
            fill()


def test_a_store_that_is_away_for_some_seconds_is_waited_for(
    server: ObjectStore, machine: Callable[[str], None], uri: str
) -> None:
    write_atomically(path_of(uri) / "a", "1")
    server.pause()
    threading.Timer(2, server.resume).start()
    began = time.monotonic()
    write_atomically(path_of(uri) / "a", "2")
    assert time.monotonic() - began > 1.5
    machine("two")
    complete(path_of(uri))
    assert (path_of(uri) / "a").read_text() == "2"


class _Html(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>no store</html>")

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("state", ["answers HTML", "closed", "silent"])
def test_an_endpoint_that_is_no_store_ends_in_one_line(
    machine: Callable[[str], None],
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: str,
) -> None:
    answers = state == "answers HTML"
    monkeypatch.setattr(object_stores, "FIRST_SECONDS", 8.0 if state == "closed" else 1.0)
    began = time.monotonic()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Html) as server:
        if answers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        if state == "closed":
            server.server_close()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        object_stores._store.cache_clear()
        with pytest.raises(StorageError) as caught:
            check_writable(path_of(uri))
        if answers:
            server.shutdown()
    assert time.monotonic() - began < 60  # a silent server is asked three times, not thirty
    assert state != "closed" or "s3://bucket: the store does not answer (" in capsys.readouterr().err
    where = f"{uri}: is not an object store: " if answers else "s3://bucket: the store has not answered for "
    assert re.match(where + r"[^\n]*; check the endpoint[^\n]*$", str(caught.value))


def test_a_store_that_has_never_answered_is_waited_for_shortly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a command it is a wrong address; in a worker the driver has reached it."""
    monkeypatch.setattr(object_stores, "_answered", set())
    monkeypatch.setattr(object_stores, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(object_stores, "PATIENCE_SECONDS", 0.6)
    failures: list[float] = []

    def refuse() -> None:
        failures.append(time.monotonic())
        raise OSError("Could not connect to server")

    def tries(uri: str, line: str) -> int:
        failures.clear()
        with pytest.raises(StorageError) as caught:
            object_stores.patiently(refuse, uri, None)
        assert str(caught.value).startswith(f"{uri}: the store has not answered for {line}")
        return len(failures)

    first = (
        "0 seconds (Could not connect to server); check the endpoint and the network, then give the same command again"
    )
    assert tries("s3://new", first) == 1
    assert capsys.readouterr().err == ""
    assert object_stores.patiently(lambda: 1, "s3://old", None) == 1
    assert tries("s3://old", "0.01 minutes (Could not connect to server); ") > 1
    assert "s3://old: the store does not answer (Could not connect to server)" in capsys.readouterr().err
    assert tries("s3://new", first) == 1
    object_stores.trust_stores()
    assert tries("s3://new", "0.01 minutes (Could not connect to server); ") > 1


@pytest.mark.slow
def test_a_store_that_goes_silent_while_an_input_is_read_is_waited_for(
    machine: Callable[[str], None], uri: str, server: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    row = b'{"text": "' + b"x" * 1000 + b'"}\n'
    object_stores.write_object(path_of(uri) / "rows.jsonl", 3000 * row)
    read = numbered_rows(f"{uri}/rows.jsonl")
    assert next(read)[0] == 1
    server.pause()
    threading.Timer(14, server.resume).start()  # after the first message
    assert [number for number, _ in read][-1] == 3000
    assert "s3://bucket: the store does not answer (" in capsys.readouterr().err
