"""Access policy of the launched servers: this machine only, or any machine with the token.

Ray runs any code that it receives, so a process that reaches a cluster without a token controls the account that the
cluster runs under. MLflow 3 has no tokens and is never opened to other machines here."""

from __future__ import annotations

import ipaddress
import os
import secrets
import shlex
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raytriever.errors import ConfigError, StorageError, setting
from raytriever.paths import expanded
from raytriever.store.disk import disk_errors

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
ON, OFF = "token", "disabled"
# Ray 2.60 replaces `--node-ip-address=127.0.0.1` by the machine's address in the network, on the server and in the
# client, unless clusters of several machines are switched off, as they are on macOS and Windows by default.
ONE_MACHINE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True)
class AccessPolicy:
    """Interfaces that the launched Ray exposes, and its authentication.

    Args:
        host: address at which the dashboard listens.
        address: address by which Ray's own processes and other nodes reach each other.
        token_file: file with the token that every request must carry; None without authentication, or if the
            token is in the environment.
        is_authenticated: whether requests must carry the token.
    """

    host: str
    address: str
    token_file: Path | None
    is_authenticated: bool

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for Ray and its clients; never the token itself."""
        own = dict(ONE_MACHINE) if self.is_local else {}
        if not self.is_authenticated:
            return own | {MODE: OFF}
        return own | {MODE: ON} | ({TOKEN_PATH: str(self.token_file)} if self.token_file else {})

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach Ray."""
        return ipaddress.ip_address(self.address).is_loopback


def decide_access(host: str, authenticate: bool, environment: Mapping[str, str]) -> AccessPolicy:
    """Return the access policy of the flags. Nothing is written; see `ensure_token`.

    Args:
        authenticate: value of `--auth`; without it, `RAY_AUTH_MODE` decides.

    Raises:
        ConfigError: the host is no address of this machine, or would expose Ray to other machines without a token.
    """
    addresses = _resolve(host)
    mode = environment.get(MODE, "").lower()
    if mode not in ("", ON, OFF):
        raise ConfigError(f"unknown mode {mode!r}", MODE, f"give {ON!r} or {OFF!r}")
    is_authenticated = authenticate or mode == ON
    if not is_authenticated and not all(address.is_loopback for address in addresses):
        raise ConfigError(
            f"{host} lets anyone who reaches this machine run programs on it",
            setting("host"),
            f"add {setting('auth', True)}, so that only clients with the token may, or omit {setting('host')}",
        )
    token_file = None
    if is_authenticated and not environment.get(TOKEN):
        token_file = expanded(environment.get(TOKEN_PATH) or "~/.ray/auth_token").absolute()
    address = _own_address() if addresses[0].is_unspecified else str(addresses[0])
    return AccessPolicy(host, address, token_file, is_authenticated)


def ensure_token(file: Path) -> None:
    """Create a file with a new token that only its owner may read, or check an existing one.

    Raises:
        StorageError: other users may read the file, it belongs to another user, is empty, or cannot be written.
    """
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w") as stream:
                stream.write(secrets.token_hex(32))
                stream.flush()
                os.fsync(stream.fileno())
        status = file.stat()
    if status.st_uid != os.geteuid():
        raise StorageError("the token file belongs to another user", str(file), f"set {TOKEN_PATH} to a file of yours")
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        raise StorageError("holds no token", str(file), "remove it; a new one is created")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise StorageError(
            f"other users may read the token file (mode {mode:04o})",
            str(file),
            f"{shlex.join(['chmod', '600', str(file)])}, or remove it if others may have read it; a new one is created",
        )


def restrict_token_file() -> None:
    """Make Ray's own token file readable by its owner only; Ray creates it with the permissions of the umask."""
    file = expanded(os.environ.get(TOKEN_PATH) or "~/.ray/auth_token")
    if os.environ.get(MODE, ON).lower() != ON or os.environ.get(TOKEN):
        return
    with suppress(OSError, StorageError):
        if file.exists():
            if file.stat().st_mode & 0o077 and file.stat().st_uid == os.geteuid():
                file.chmod(0o600)
        else:
            ensure_token(file)


def _resolve(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return every address of a host name on this machine."""
    with suppress(ValueError):
        return [ipaddress.ip_address(host)]
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host!r} is no address of this machine", setting("host"), "give 127.0.0.1 or an address"
        ) from error
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]


def _own_address() -> str:
    """Return the address by which other machines reach this one. A datagram connection sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation, in no network
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
