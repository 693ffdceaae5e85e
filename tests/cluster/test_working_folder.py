"""A command in the folder of a downloaded data set runs none of its files, in no process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from processes import run_python
from tiny_models import write_cross_encoder

# Packages that libraries look for and that are not installed: the working folder would be the only place to have them.
ABSENT = {"cudf", "cupy", "flash_attn", "jax", "tensorflow", "vllm", "xformers", "sitecustomize", "usercustomize"}
# Modules that are compiled into Python can be imported in any module.
FILE = """import posix
file = posix.open({log!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND)
posix.write(file, f"{{__name__}} {{posix.getpid()}}\\n".encode())
raise ImportError("a file of the working folder")
"""
MODEL = "--model encoder"
TRAIN = f"--dataset . {MODEL} --loss mw --batch-size 16 --max-steps 2 --precision fp32 --negatives-per-query 1"
STUDY = """seeds: 1
metrics: auc
data_sets: {letters: .}
settings:
  model: {model: encoder}
  training: {batch_size: 16, max_steps: 2, precision: fp32}
variants:
  MW: {loss: {loss: mw}}
"""
SERVER = Path(__file__).parents[1] / "support" / "llm_server.py"
# Each command but `quickstart`, a training of minutes, and `launch` and `submit`, which start other programs.
COMMANDS = f"""\
import documents {MODEL} --output imported
prepare --dataset . {MODEL} --output prepared
encode --dataset . {MODEL} --output embeddings --actors 1
mine --dataset . --method random --num-negatives 2 --output mined
score --dataset . --negatives mined --model cross --output scored
annotate --dataset . --llm judge --base-url ENDPOINT --candidates bm25 --depth 2 --max-queries 2 --output annotated
train {TRAIN} --output run
tune {TRAIN} --search-space temperature --searcher grid --trials 1 --output sweep
study study.yaml --output study
evaluate --datasets . --model bm25 run --output evaluation --precision fp32
compare run evaluation --output page.html
search --dataset . {MODEL} word
index --dataset . {MODEL} --index hnsw --output index --query word
export --model run --output exported
runs list .
cache list
doctor"""


class Folder:
    """Folder with a data set, an encoder, and a file for each module of Python and of the installed packages."""

    def __init__(self, path: Path, dataset: Path, encoder: Path) -> None:
        self.path, self.log = path / "hostile", path / "log"
        shutil.copytree(dataset, self.path)
        shutil.copytree(encoder, self.path / "encoder")
        for name in {*sys.stdlib_module_names, *packages_distributions(), *ABSENT} - set(sys.builtin_module_names):
            if name.isidentifier():
                (self.path / f"{name}.py").write_text(FILE.format(log=str(self.log)))
        self.program = path / "bin" / "raytriever"  # as pip installs it
        self.program.parent.mkdir()
        self.program.write_text("import sys\nfrom raytriever.cli.main import run\nsys.exit(run())\n")
        (self.path / "documents").mkdir()
        (self.path / "documents" / "page.md").write_text("# Words\n\nA page with a few words.\n")
        (self.path / "study.yaml").write_text(STUDY)
        own = {"MLFLOW_TRACKING_URI": f"sqlite:///{path}/mlflow.db", "RAYTRIEVER_CACHE": f"{path}/cache"}
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | own

    def run(self, *words: str) -> None:
        """Run a command in the folder. It ends well, and no file of the folder has run."""
        run_python(self.program, *words, cwd=self.path, env=self.environment, timeout=500)
        assert not self.log.exists(), self.log.read_text()

    def check(self) -> None:
        """Show that the files do run where Python looks for them."""
        subprocess.run([sys.executable, "-c", "import csv"], cwd=self.path, env=self.environment, check=False)
        assert self.log.read_text().startswith("csv ")


@pytest.fixture
def folder(tmp_path: Path, tiny_dataset: Path, tiny_encoder: Path) -> Folder:
    return Folder(tmp_path, tiny_dataset, tiny_encoder)


@pytest.mark.timeout(600)
def test_a_preparation_runs_no_file_of_the_working_folder(folder: Folder) -> None:
    folder.run("prepare", "--dataset", ".", "--model", "encoder", "--output", "prepared")
    folder.check()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_no_command_runs_a_file_of_the_working_folder(folder: Folder, tiny_encoder: Path) -> None:
    write_cross_encoder(tiny_encoder, folder.path / "cross")
    server = [sys.executable, SERVER, "--log", folder.path.parent / "requests"]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        endpoint = f"http://127.0.0.1:{int(service.stdout.readline())}/v1"
        try:
            for command in COMMANDS.splitlines():
                folder.run(*(endpoint if word == "ENDPOINT" else word for word in command.split()))
        finally:
            service.kill()
    folder.check()
