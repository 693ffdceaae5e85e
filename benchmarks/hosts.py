"""What a fault of one host costs a training: seconds to the first message and to the next step, and what is lost.

Run as root: `python benchmarks/hosts.py [--json PATH]`. It needs what `tests/hosts` needs: `iproute2` and
`openssh-server`. A head and two hosts with one worker each, all in network namespaces of this machine, train a tiny
encoder from a bucket into the bucket. Each fault strikes a training of its own, after its first checkpoint, and is
repaired after the first message. The next step is the first one whose number is above all those before the fault; its
seconds count from the repair. Lines of progress come every few seconds, so both times are that coarse."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ends import End, exactly, parser, report, reported
from faults import make_dataset, make_encoder

sys.path += [str(Path(__file__).parent.parent / "tests" / folder) for folder in ("hosts", "support")]
from clusters import Cluster, Lines
from network import Hosts

PROGRESS = r"train: (\d+)/4000"
AWAY_SECONDS = 20.0


@dataclass(frozen=True)
class Fault:
    """A fault, the first message that names it, and its repair."""

    name: str
    strikes: Callable[[], object]
    message: str
    repair: Callable[[], object]


def faults(cluster: Cluster) -> list[Fault]:
    """Return the faults of this benchmark."""
    hosts = cluster.hosts

    def connect_again() -> None:
        hosts.reconnect("h3")
        cluster.join("h3")

    def answer_again() -> None:
        time.sleep(AWAY_SECONDS)
        cluster.store.resume()

    kill = partial(hosts.run, "h3", ["pkill", "-9", "-f", "[r]ay"], {})  # the pattern is not itself
    lost = r"worker \d on host h\d (?:died with its node|lost its connection to host h\d)"
    return [
        Fault("a cable is out", partial(hosts.cut, "h3"), lost, connect_again),
        Fault("a machine is killed", kill, lost, partial(cluster.join, "h3")),
        Fault("the store is away", cluster.store.pause, "the store does not answer", answer_again),
    ]


def measure(cluster: Cluster, fault: Fault) -> dict[str, End]:
    """Measure one fault in a training of its own."""
    run = fault.name.replace(" ", "-")
    words = ("--num-workers=2", "--max-steps=4000", "--checkpoint-steps=10", "--wait-minutes=10", "--eval-steps=4000")
    process = cluster.train(run, *words)
    lines = Lines(process.stderr)
    before = 0
    while before < 20:
        before = int(lines.wait_for(PROGRESS)[1])
    begin = time.monotonic()
    fault.strikes()
    lines.wait_for(fault.message)
    noticed = time.monotonic() - begin
    fault.repair()
    begin, step = time.monotonic(), before
    while step <= before:
        step = int(lines.wait_for(PROGRESS)[1])
    continued = time.monotonic() - begin
    os.killpg(process.pid, signal.SIGINT)  # `nsenter` passes no signal on
    process.communicate(timeout=120)
    steps = list(cluster.losses(run))  # an error if the log has a step twice
    missing = len(set(range(1, steps[-1] + 1)) - set(steps))
    return {
        f"{fault.name}: seconds to the first message": reported(noticed),
        f"{fault.name}: seconds from the repair to the next step": reported(continued),
        f"{fault.name}: steps that the log lacks": exactly(missing, 0),
    }


def main() -> None:
    """Build the hosts, measure, and report."""
    options = parser((__doc__ or "").splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as temporary:
        folder = Path(temporary)
        make_encoder(folder / "model")
        make_dataset(folder / "data")
        hosts = Hosts(folder, 3)
        try:
            cluster = Cluster(hosts, folder)
            ends = {name: end for fault in faults(cluster) for name, end in measure(cluster, fault).items()}
            cluster.store.process.kill()
        finally:
            hosts.stop()
    report("faults of hosts", ends, options.json)


if __name__ == "__main__":
    main()
