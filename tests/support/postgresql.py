"""A real PostgreSQL server on this machine (Debian's package), in a folder of its own."""

from __future__ import annotations

import glob
import os
import pwd
import subprocess
from pathlib import Path
from tempfile import TemporaryFile

from processes import free_port

INSTALL = "PostgreSQL is not installed: apt-get install postgresql, or leave these tests out with -m 'not postgresql'"


class PostgreSQL:
    """A server with the database `mlflow`, however often it is started.

    Args:
        folder: of its data; a new one.
    """

    def __init__(self, folder: Path) -> None:
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        assert programs, INSTALL
        self._programs, self._folder, self.port = Path(programs[-1]), folder, free_port()
        # It refuses to run as root, and its user must reach the folder.
        self._user = "postgres" if os.geteuid() == 0 else None
        folder.mkdir()
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            for above in folder.parents[:-1]:
                above.chmod(above.stat().st_mode | 0o011)
        self.uri = f"postgresql://postgres@127.0.0.1:{self.port}/mlflow"
        self._run("initdb", "-D", "data", "-A", "trust", "-U", "postgres")
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "mlflow")

    def start(self) -> None:
        """Start it; returns when it answers."""
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1"
        self._run("pg_ctl", "-D", "data", "-w", "-o", options, "-l", "log", "start")

    def stop(self) -> None:
        """Stop it at once, with its connections."""
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "stop")

    def _run(self, program: str, *words: str) -> None:
        with TemporaryFile("w+") as errors:  # no pipe: the server would keep it open
            done = subprocess.run(
                [self._programs / program, *words],
                cwd=self._folder,
                user=self._user,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )
            errors.seek(0)
            assert done.returncode == 0, f"{program}: {errors.read()}"
