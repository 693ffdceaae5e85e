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

from raytriever.errors import ConfigError, StorageError
from raytriever.paths import expanded
from raytriever.storage import disk_errors

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
ON, OFF = "token", "disabled"
# Ray 2.60 takes `--node-ip-address=127.0.0.1` for the machine's address in the network, and so does who connects,
# except where clusters of several machines are switched off, as they are on macOS and Windows by default.
ONE_MACHINE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True)
class AccessPolicy:
    """How Ray is to be started.

    Args:
        host: where its dashboard listens.
        address: by which its own processes reach each other, and other nodes reach them.
        token_file: whose content every request has to carry; None without authentication, or where the token
            stands in the environment.
        authenticated: whether requests have to carry it.
    """

    host: str
    address: str
    token_file: Path | None
    authenticated: bool

    @property
    def environment(self) -> dict[str, str]:
        """What Ray, and whoever talks to it, needs in the environment; never the token itself."""
        own = dict(ONE_MACHINE) if self.is_local else {}
        if not self.authenticated:
            return own | {MODE: OFF}
        return own | {MODE: ON} | ({TOKEN_PATH: str(self.token_file)} if self.token_file else {})

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.address).is_loopback


def decide_access(host: str, authenticate: bool, environment: Mapping[str, str]) -> AccessPolicy:
    """Decide; nothing is made, see `ensure_token`.

    Args:
        host: `--host`.
        authenticate: `--auth`; without it, what `RAY_AUTH_MODE` says counts.
        environment: of this process.

    Raises:
        ConfigError: the host is none, or would open Ray to other machines without a token.
    """
    addresses = _addresses(host)
    asked = environment.get(MODE, "").lower()
    if asked not in ("", ON, OFF):
        raise ConfigError(f"{asked!r}", MODE, f"give {ON!r} or {OFF!r}")
    authenticated = authenticate or asked == ON
    outside = [address for address in addresses if not address.is_loopback]
    if outside and not authenticated:
        raise ConfigError(
            f"{host} lets whoever reaches this machine run programs on it",
            "--host",
            "add --auth, so that only who has the token may, or leave --host out",
        )
    token_file = None
    if authenticated and not environment.get(TOKEN):
        token_file = expanded(environment.get(TOKEN_PATH) or "~/.ray/auth_token").absolute()
    address = _own_address() if addresses[0].is_unspecified else str(addresses[0])
    return AccessPolicy(host, address, token_file, authenticated)


def ensure_token(file: Path) -> None:
    """A file with a token that only its owner may read; made with a new one where there is none.

    Raises:
        StorageError: it may be read by others, belongs to another, is empty, or cannot be written.
    """
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w") as stream:
                stream.write(secrets.token_hex(32))
                stream.flush()
                os.fsync(stream.fileno())
        found = file.stat()
    if found.st_uid != os.geteuid():
        raise StorageError("the token's file belongs to another user", str(file), f"name one of yours by {TOKEN_PATH}")
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        raise StorageError("holds no token", str(file), "remove it: a new one is made")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise StorageError(
            f"the token's file may be read by others (mode {mode:04o})",
            str(file),
            f"{shlex.join(['chmod', '600', str(file)])}, or remove it where others may have read it: a new one is made",
        )


def restrict_token_file() -> None:
    """Take Ray's own token file from everybody but its owner: Ray makes it with what the umask leaves."""
    file = expanded(os.environ.get(TOKEN_PATH) or "~/.ray/auth_token")
    if os.environ.get(MODE, ON).lower() != ON or os.environ.get(TOKEN):
        return
    with suppress(OSError, StorageError):
        if file.exists():
            if file.stat().st_mode & 0o077 and file.stat().st_uid == os.geteuid():
                file.chmod(0o600)
        else:
            ensure_token(file)


def _addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """What a host is: every address that it has here."""
    with suppress(ValueError):
        return [ipaddress.ip_address(host)]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host!r} is no address of this machine", "--host", "give 127.0.0.1 or an address"
        ) from error
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


def _own_address() -> str:
    """The address under which other machines see this one; a connection of this kind sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation, on no network
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
