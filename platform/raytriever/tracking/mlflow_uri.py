"""Check of MLflow's address before any work, without loading MLflow.

MLflow tries a database that cannot be opened for minutes, and an error of it after an hour of work would be late. So
whatever is wrong with the address itself is found first: an unknown scheme, a driver that is not installed, an SQLite
file that cannot be one, a server at whose port nothing listens.
"""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from raytriever.errors import ConfigError
from raytriever.masking import masked
from raytriever.storage import check_writable, disk_errors

SQLITE = "sqlite:///"
# The databases that MLflow knows, by the default port of their servers, and the package of their usual driver.
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433, "http": 80, "https": 443}
DRIVERS = {"postgresql": "postgresql+psycopg2://... with psycopg2-binary", "mysql": "mysql+pymysql://... with pymysql"}
HEADER = b"SQLite format 3\0"
ANSWER_SECONDS = 5.0
_REMEDY = "mend MLFLOW_TRACKING_URI, or unset it for mlflow.db in the current folder"


def check_uri(uri: str) -> None:
    """Refuse an address of MLflow at which nothing can be tracked; passes what only MLflow itself can judge.

    Args:
        uri: the address; users and passwords in it are never shown.

    Raises:
        ConfigError: the address, its driver or its server.
        StorageError: an SQLite file cannot be written.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator:
        if uri.startswith("sqlite:"):
            raise _refusal(uri, "is no address of an SQLite file", "write sqlite:///FILE, with three slashes")
        return
    name = scheme.partition("+")[0]
    if name == "sqlite":
        _check_sqlite(uri)
        return
    if name not in PORTS:
        if name in ("file", "databricks", "databricks-uc", "uc"):
            return
        known = ", ".join(["sqlite:///FILE", *(f"{one}://" for one in PORTS)])
        raise _refusal(uri, f"has the unknown scheme {name!r}", f"use one of {known}")
    try:
        address = urlsplit(uri)
        host, port = address.hostname, address.port or PORTS[name]
    except ValueError as error:
        raise _refusal(uri, f"is no address ({error})") from error
    if name not in ("http", "https"):
        _check_driver(uri, name)
    if host and not _goes_through_proxy(address):
        try:
            socket.create_connection((host, port), ANSWER_SECONDS).close()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise _refusal(
                uri,
                f"MLflow does not answer ({reason} at {host}:{port})",
                "start the server, or mend MLFLOW_TRACKING_URI",
            ) from error


def _refusal(uri: str, what: str, remedy: str = _REMEDY) -> ConfigError:
    return ConfigError(what, masked(uri), remedy)


def _check_sqlite(uri: str) -> None:
    if not uri.startswith(SQLITE) or not uri.removeprefix(SQLITE):
        raise _refusal(uri, "names no file", "write sqlite:///FILE, with three slashes")
    file = Path(uri.removeprefix(SQLITE).partition("?")[0])
    with disk_errors(masked(uri)):
        if file.is_dir():
            raise _refusal(uri, "is a folder", f"name a file in it, as sqlite:///{file / 'mlflow.db'}")
        if not file.parent.is_dir():
            raise _refusal(uri, f"the folder {file.parent} does not exist", "make it, or name a file in another folder")
        check_writable(file.parent)  # SQLite writes its journal there
        if not file.exists():
            return
        with file.open("r+b") as stream:
            begins = stream.read(len(HEADER))
    if begins not in (b"", HEADER):
        raise _refusal(uri, "is no SQLite database", "name another file, or move this one away")


def _check_driver(uri: str, name: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        known = f", or {DRIVERS[name]}" if name in DRIVERS else ""
        raise _refusal(
            uri, f"needs the Python package {error.name}, which is not installed", f"pip install {error.name}{known}"
        ) from error
    except (ArgumentError, ValueError) as error:
        raise _refusal(uri, f"is no address of a database ({masked(str(error))})") from error


def _goes_through_proxy(address: SplitResult) -> bool:
    """Whether a request would be sent to another server first, which alone may reach this one."""
    if address.scheme not in ("http", "https") or not address.hostname:
        return False
    return bool(getproxies().get(address.scheme)) and not proxy_bypass(address.hostname)
