"""Choose the network interface of a worker for gloo, NCCL and tensorpipe: the one with the address of its Ray node.

By default, gloo and tensorpipe listen at the address of the host's name, which is 127.0.1.1 in `/etc/hosts` of Debian
and Ubuntu. Other hosts cannot reach it: `connectFullMesh failed ... remote=[127.0.1.1]`."""

from __future__ import annotations

import os
import re

import ray.util

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
# Errors of gloo, PyTorch's process-group store and NCCL if processes cannot reach each other. "Connection refused" is
# not among them, because it may come from anything that a worker opens, such as a tracker or a data set.
UNREACHABLE = re.compile(
    r"connectFullMesh failed|client socket has (?:failed to connect|timed out)|"
    r"socket(?:Start|Poll|Final\w*)Connect.* failed"
)
# Errors of gloo if the process at an address has ended, or its host is lost.
LOST_PEER = re.compile(r"\[([0-9a-f.:]+)\]:\d+: Connection reset|Connection closed by peer \[([0-9a-f.:]+)\]")


def choose_interface() -> None:
    """Set the libraries' environment variables to this node's interface, before a worker joins its group.

    A variable that the user has set is kept. If the address is 127.0.0.1, as on a single host, nothing is set."""
    name = interface_of(ray.util.get_node_ip_address())
    if name is not None:
        for variable in VARIABLES:
            os.environ.setdefault(variable, name)


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this address, such as `eth0`; None for a loopback or unknown address."""
    import psutil  # comes with Ray

    for name, addresses in psutil.net_if_addrs().items():
        if any(candidate.address.partition("%")[0] == address for candidate in addresses):
            return None if address.startswith("127.") or address == "::1" else str(name)
    return None
