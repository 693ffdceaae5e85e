"""Hosts on one machine: network namespaces on a bridge, each with its own address, processes, name, /tmp, /root, sshd.

Needs root, `iproute2` and `openssh-server`. A host's name resolves to 127.0.1.1, as Debian and Ubuntu write it into
`/etc/hosts`. raytriever is in /opt/raytriever."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

NETWORK = "10.77.0"
# The folders that a host sees at their usual places lie below /tmp or /root, which are its own; so they are kept aside.
INIT = """
set -e
mount --make-rprivate /
keep=$(mktemp -d /var/tmp/raytriever-hosts.XXXX)
n=0; for folder in {seen}; do n=$((n+1)); mkdir $keep/$n; mount --bind $folder $keep/$n; done
mount --bind {own}/hosts /etc/hosts
for folder in /tmp /root /opt; do mount -t tmpfs tmpfs $folder; done; chmod 1777 /tmp; chmod 700 /root
mount -t tmpfs -o size=3g tmpfs /dev/shm
n=0; for folder in {seen}; do
    n=$((n+1)); mkdir -p $folder; mount --bind $keep/$n $folder; umount $keep/$n; rmdir $keep/$n
done
rmdir $keep
ln -s {program} /opt/raytriever
hostname {name}
mkdir -p /run/sshd
/usr/sbin/sshd -f /dev/null -h {key} -E {own}/sshd -o AuthorizedKeysFile={key}.pub -o StrictModes=no -o UsePAM=no \\
    -o PermitRootLogin=yes -o PidFile=none -o MaxStartups=100
touch {own}/ready
while :; do sleep 5; done
"""


class Hosts:
    """Hosts `h1`, `h2`, ... until `stop`.

    Args:
        folder: a new folder, which all hosts see.
        count: number of hosts.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._tag = folder, f"rt{os.getpid()}"
        self.names = [f"h{number}" for number in range(1, count + 1)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._inner: dict[str, int] = {}
        repository = Path(__file__).parents[2]
        self._seen = [folder, repository, Path(sys.base_prefix)]
        self.key = folder / "key"  # opens all hosts, and is their own
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        _ip("netns", "add", self._tag)
        self._in_switch("link", "add", "br0", "type", "bridge")
        self._in_switch("link", "set", "br0", "up")
        for name in self.names:
            self._add(name)
        for name in self.names:
            self._wait(name)

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return f"{NETWORK}.{name[1:]}"

    def enter(self, name: str, *also: str) -> list[str]:
        """Return the command that runs another one in the network of a host, and in its other namespaces."""
        return ["nsenter", "-t", str(self._inner[name]), "-n", *also]

    def start(self, name: str, words: Sequence[str], environment: dict[str, str], **settings: Any) -> Any:
        """Start a program on a host; `settings` are those of `Popen`."""
        entered = [*self.enter(name, "-m", "-u", "-p"), *map(str, words)]
        return subprocess.Popen(entered, env=os.environ | environment, text=True, start_new_session=True, **settings)

    def run(self, name: str, words: Sequence[str], environment: dict[str, str]) -> str:
        """Run a program on a host and return its output; raises if it fails."""
        process = self.start(name, words, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        return str(output)

    def kill_ray(self, name: str) -> None:
        """Kill all processes of Ray and raytriever on a host."""
        self.run(name, ["pkill", "-9", "-f", "[r]ay"], {})  # the pattern is not itself

    def cut(self, name: str) -> None:
        """Take the cable of a host out."""
        self._in_switch("link", "set", f"{self._tag}{name}", "down")

    def reconnect(self, name: str) -> None:
        """Put the cable of a host in again."""
        self._in_switch("link", "set", f"{self._tag}{name}", "up")

    def stop(self) -> None:
        """End all hosts with their processes."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for name in (*(f"{self._tag}-{name}" for name in self.names), self._tag):
            _ip("netns", "del", name)

    def _add(self, name: str) -> None:
        space, own = f"{self._tag}-{name}", self._folder / name
        _ip("netns", "add", space)
        _ip("link", "add", f"{self._tag}{name}", "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", f"{self._tag}{name}", "netns", self._tag)
        self._in_switch("link", "set", f"{self._tag}{name}", "master", "br0", "up")
        _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", space, "link", "set", device, "up")
        # Without a default route Ray takes 127.0.0.1 for the host's address.
        _ip("-n", space, "route", "add", "default", "via", f"{NETWORK}.254", "dev", "eth0")
        own.mkdir()
        (own / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        seen = shlex.join(map(str, self._seen))
        script = INIT.format(own=own, name=name, seen=seen, program=sys.prefix, key=self.key)
        unshare = ["unshare", "-m", "-u", "-p", "-f", "--mount-proc", "--kill-child", "bash", "-c", script]
        with (own / "log").open("w") as log:
            self._processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", space, *unshare], stdout=log, stderr=log, start_new_session=True
                )
            )

    def _wait(self, name: str) -> None:
        own, outer = self._folder / name, self._processes[self.names.index(name)]
        end = time.monotonic() + 30
        while not (own / "ready").exists():
            assert time.monotonic() < end, (own / "log").read_text()
            time.sleep(0.1)
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        self._inner[name] = int(children[0])

    def _in_switch(self, *words: str) -> None:
        _ip("-n", self._tag, *words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
