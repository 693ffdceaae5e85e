"""Changes of a case's folder: each function returns one that makes a change when the case begins.

A change that touches a material says so by its `path`, so that the material is copied first."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.case import Maker


def change(path: str, action: Callable[[Path], None]) -> Maker:
    """Call an action with the path of a file in the case's folder, or the first that matches; its parents are made."""

    def make(folder: Path) -> None:
        file = min(folder.glob(path)) if "*" in path else folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        action(file)

    make.path = path  # type: ignore[attr-defined]
    return make


def write(path: str, content: str | bytes) -> Maker:
    """Write a file."""
    return change(path, lambda file: _write(file, content.encode() if isinstance(content, str) else content))


def rows(path: str, *lines: dict[str, Any] | str | bytes) -> Maker:
    """Write a file of lines; dictionaries become JSON."""
    return write(path, b"".join(_line(line) + b"\n" for line in lines))


def row(path: str, number: int, content: dict[str, Any] | str | bytes) -> Maker:
    """Replace one line of a file, counted from 1."""

    def action(file: Path) -> None:
        lines = file.read_bytes().splitlines()
        lines[number - 1] = _line(content)
        _write(file, b"".join(line + b"\n" for line in lines))

    return change(path, action)


def every_row(path: str, alter: Callable[[dict[str, Any]], Any]) -> Maker:
    """Alter each JSON row of a file in place."""

    def action(file: Path) -> None:
        rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        for content in rows:
            alter(content)
        _write(file, b"".join(_line(content) + b"\n" for content in rows))

    return change(path, action)


def replaced(path: str, old: str | bytes, new: str | bytes) -> Maker:
    """Replace bytes of a file that must be there."""
    before, after = (text.encode() if isinstance(text, str) else text for text in (old, new))

    def action(file: Path) -> None:
        content = file.read_bytes()
        assert before in content, f"{before!r} is not in {file}"
        _write(file, content.replace(before, after))

    return change(path, action)


def cut(path: str, size: int) -> Maker:
    """Cut a file to a size; a negative one counts from its end."""
    return change(path, lambda file: _write(file, file.read_bytes()[:size]))


def packed(path: str) -> Maker:
    """Replace a file by a gzip of it."""

    def action(file: Path) -> None:
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()

    return change(path, action)


def document(path: str, alter: Callable[[Any], Any]) -> Maker:
    """Alter a JSON file; what the function returns replaces it where that is not None."""

    def action(file: Path) -> None:
        content = json.loads(file.read_bytes())
        replacement = alter(content)
        _write(file, json.dumps(content if replacement is None else replacement).encode())

    return change(path, action)


def removed(path: str) -> Maker:
    """Remove a file or a folder."""
    return change(path, lambda file: shutil.rmtree(file) if file.is_dir() else file.unlink())


def folder(path: str) -> Maker:
    """Make an empty folder; a file that has the name gives way."""

    def action(file: Path) -> None:
        if file.is_file():
            file.unlink()
        file.mkdir(exist_ok=True)

    return change(path, action)


def link(path: str, target: str) -> Maker:
    """Make a symbolic link; what has the name gives way."""

    def action(file: Path) -> None:
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        file.unlink(missing_ok=True)
        file.symlink_to(target)

    return change(path, action)


def fifo(path: str) -> Maker:
    """Make a named pipe that nobody writes to."""

    def action(file: Path) -> None:
        file.unlink(missing_ok=True)
        os.mkfifo(file)

    return change(path, action)


def socket_file(path: str) -> Maker:
    """Make a socket in place of a file."""

    def action(file: Path) -> None:
        file.unlink(missing_ok=True)
        there = os.getcwd()
        os.chdir(file.parent)  # an address of a socket has at most 107 bytes
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(file.name)
        finally:
            os.chdir(there)

    return change(path, action)


def mode(path: str, bits: int) -> Maker:
    """Set the permissions of a file or folder."""
    return change(path, lambda file: file.chmod(bits))


def sealed(path: str, *makers: Maker) -> Maker:
    """Make changes in a committed directory and write the right sizes and digests into its manifest afterwards."""

    def make(work: Path) -> None:
        for maker in makers:
            maker(work)
        manifest = work / path / "manifest.json"
        content = json.loads(manifest.read_bytes())
        for name in list(content["files"]):
            file = work / path / name
            if file.is_file():
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                content["files"][name] = {"size": file.stat().st_size, "sha256": digest}
            else:
                del content["files"][name]
        manifest.write_text(json.dumps(content))

    make.path = path  # type: ignore[attr-defined]
    return make


def _write(file: Path, content: bytes) -> None:
    # A material may be a hard link of the original: never written in place.
    file.unlink(missing_ok=True)
    file.write_bytes(content)


def _line(content: dict[str, Any] | str | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    return (content if isinstance(content, str) else json.dumps(content)).encode()
