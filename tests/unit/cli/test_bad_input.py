"""User errors end in one line and exit code 2, and leave no files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from raytriever.cli.main import run
from raytriever.data.data_settings import DataConfig
from raytriever.experiments.study.run_study import SETTINGS
from raytriever.training.run_config import Config, dump_config

ErrorLine = Callable[..., str]
# A command and its error. LETTERS is a data set, MODEL an encoder.
COMMANDS = """
train --loss mv => loss: unknown value 'mv'; did you mean 'mw'?
train --batch-size 10 --num-workers 3 => batch_size: 10 is not divisible by 3 workers; give a multiple of 3, such
train --batch-size 0 => batch_size: 0 is out of range; give a value of at least 1
train --batch-size many => batch_size: 'many' is invalid; give a whole number
train --batch-size 99999999999999999999 => batch_size: is out of range; give a number of at most 18 digits
train --temperature 0 => temperature: 0.0 is out of range; give a value above 0
train --temperature inf => temperature: inf is out of range; give a finite number
train --seed 4294967296 => seed: 4294967296 is out of range; give a value of at most 4294967295
train --seed => seed: has no value; see `raytriever train --help`
train --recipe pydoc => recipe: unknown recipe 'pydoc'; did you mean 'pydocs'?
train --run-name ../x => run_name: '../x' is not a valid run name; use letters, digits
train stray => unexpected argument 'stray'; see `raytriever train --help`
train --refresh-every 5 => refresh_every: there are no hard negatives to refresh; also give negatives_per_query
train --refresh-every 5 --negatives-per-query 1 --max-steps 5 => no steps are left after the first refresh, at step 5 of
train --refresh-every 12 --negatives-per-query 1 --batch-size 8 --epochs 1 --dataset LETTERS => at step 12 of 12; give
train --refresh-mode rolling --refresh-every 5 --negatives-per-query 1 => choose from async, sync
train --refresh-pool 2:1 => refresh_pool: '2:1' is invalid; give a number of processes such as 4, or a minimum and
train --max-grad-norm 3 => --max-grad-norm: is a setting without a flag; write `training: {max_grad_norm: VALUE}` into
train --refresh-ranks 3:9 => --refresh-ranks: was removed; give --refresh-relative-margin
train --dev-split de --dataset LETTERS => letters: no split 'de'; there are: dev, test, train; choose from dev
train --matryoshka-dims 16,x => matryoshka_dims: '16,x' is invalid; give whole numbers of at least 1
train --matryoshka-dims 8,16,4 => matryoshka_dims: '8,16,4' is invalid; give each dimension once, in this order: 16,8,4
train --matryoshka-dims 64,16 --dataset LETTERS --model MODEL => asks for 64 components, but embeddings have 32; give at
train --guide ./encodr => guide ./encodr: no such directory
train --guide '' => guide: the path is empty
train --loss kl => teacher: loss kl needs the scores of a teacher; give the directory that `raytriever score` wrote
train --loss kl --teacher s --negatives-per-query 2 => s: there are no scores; give a directory that `raytriever score`
train --loss kl --teacher LETTERS => negatives_per_query: loss kl needs hard negatives; give at least 1
train --loss kl --teacher LETTERS --negatives-per-query 2 --refresh-every 5 => no teacher has scored refreshed negatives
search => missing: query; see `raytriever search --help`
search '' => the query is empty; give a few words
search x --top 0 => --top: 0 is out of range; give at least 1
search x --threshold nan => threshold: nan is out of range
search x --dataset pydoc => dataset pydoc: no data set of this name and no such folder; did you mean
search caf\udce9 --dataset LETTERS => byte 0xe9 of 'caf\\udce9' is not UTF-8; set the terminal to UTF-8
evaluate => datasets is missing; give datasets PATH, or suite beir
evaluate --suite bier => suite: unknown value 'bier'; did you mean 'beir'?
evaluate --datasets LETTERS --split tets => letters: no split 'tets'; there are: dev, test, train; choose
evaluate --datasets LETTERS LETTERS => datasets: two data sets are called 'letters'; give each data set once
evaluate --datasets LETTERS --pooling man => pooling: 'man' is invalid; did you mean 'mean'?
evaluate --datasets LETTERS --metrics ndgc@10 => metrics: unknown metric 'ndgc@10'; did you mean 'ndcg'?
evaluate --datasets LETTERS --model bm25 --metrics acc@5 => query 'q128' has no answers; leave acc@K out of metrics
evaluate --datasets LETTERS --calibrate f1=0.5 => calibrate: 'f1=0.5' is not a target; write top-precision=0.9, wrong
evaluate --datasets LETTERS --calibrate recall=1 --calibration-split test => calibration_split: letters is already
evaluate --datasets LETTERS --baseline bm25 => baseline: 'bm25' is not one of the models; choose from minilm
search x --dataset LETTERS --model run:LETTERS/corpus.jsonl => has results only for the queries of its file; give
search x --dataset LETTERS --model bm25+bm25 => model bm25+bm25: fuses bm25 with itself; give two different systems
encode --dataset LETTERS --output own --model bm25 => bm25: is a system for `evaluate`, not an encoder
evaluate --datasets LETTERS --model bm25 bm25 => model: two models are called 'bm25'; give one of them a new name
evaluate --datasets LETTERS --model MODEL --dtype int88,fp32 => dtype: 'int88,fp32' is invalid; did you mean 'int8'?
evaluate --datasets LETTERS --model bm25 --dtype int8 => dtype: bm25 has no embeddings; leave it out
evaluate --datasets LETTERS --model MODEL --rescore-multiplier 4 => rescore_multiplier: has no effect without dtype
evaluate --datasets LETTERS --model MODEL --truncate-dim 12,33 => truncate_dim: 33 is out of range, embeddings of
evaluate --datasets LETTERS --model MODEL --truncate-dim 12,x => truncate_dim: '12,x' is invalid; give whole numbers
evaluate --suite mteb --tasks SciFact --truncate-dim 8,16 => --truncate-dim: names several dimensions
search x --dataset LETTERS --model MODEL --truncate-dim 33 => truncate_dim: 33 is out of range, embeddings of
encode --output own --dataset LETTERS --model MODEL --truncate-dim 33 => truncate_dim: 33 is out of range, embeddings of
export --output own --model MODEL --truncate-dim 33 => truncate_dim: 33 is out of range, embeddings of
export --output own --model MODEL --truncate-dim 0 => truncate_dim: 0 is out of range; give a value of at least 1
export --output own --model minilm --licence 'not a licence' => give an SPDX identifier such as apache-2.0
export --output own --model minilm --push-to-hub 'a b' => give the name of a repository as OWNER/NAME
export --output own --model minilm --push-to-hub alone => give the name of a repository
evaluate --suite mteb --tasks SciFact --datasets LETTERS => datasets: has no effect with suite mteb;
evaluate --suite mteb --tasks SciFact --no-drop-own-id => --no-drop-own-id: has no effect with --suite mteb; leave it
prepare --dataset LETTERS => missing: --output
prepare --dataset LETTERS --output own --format biir => unknown format 'biir'; did you mean
prepare --dataset LETTERS --output own --format dpr => dpr
encode --output own --actors 4:2 => actors: '4:2' is invalid; give N or MIN:MAX actors, from 1 to 9,999
encode --output own --actor-gpus 2 => actor_gpus: 2.0 is out of range
index --output i --index hnws => index: unknown value 'hnws'; did you mean 'hnsw'?
index --output i --query ' ' => query: the query is empty; give a few words
index --output i --index roargraph --split train => split: the graph is built from the queries of train, so
index --output . => cannot read manifest.json
mine --output t --method bm52 => method: unknown method 'bm52'; did you mean 'bm25'?
mine --output t --range-min 200 --range-max 30 => range_max: 30 is not above range_min 200; give a larger number
mine --output t --range-min 30 --range-max 35 => num_negatives: 10 negatives cannot come from 5 ranks (30 to 34)
mine --output t --dataset LETTERS --split valid => no split 'valid'; there are: dev, test, train
mine --output t --dataset LETTERS --range-min 200 => range_min: 200 skips all 160 documents; give a smaller number
mine --output t --dataset LETTERS --method gold => method gold: letters has no gold negatives; choose other methods
mine --output t --dataset LETTERS --drop-answers => drop_answers=True: letters has no answers; add answers.jsonl
mine --output t --dataset LETTERS => no negative is left; bm25: candidates 96, relevant 96, kept 0; loosen the filters
score --output s --dataset LETTERS => model: is missing; name a cross-encoder: a directory, or a hub name
score --output s --dataset LETTERS --model MODEL => has no trained weights for classifier
score --output s --dataset LETTERS --model minilm => consists of Transformer, Pooling, Normalize and is not a plain
score --output s --dataset LETTERS --model MODEL --max-length 7 => max_length: 7 is out of range; give a
study => missing: --output, FILE.yaml
study mw-in-domain --output s => 'mw-in-domain' is not a study file; give the path of a YAML file: your own, or
study ood --output s => 'ood' is not a study file; give `python studies/gap.py` in a checkout
study mw.yaml --output s --scale small => scale: was removed; give a study file, such as studies/mw-in-domain.yaml
study mw.yaml --output s --seeds 0 => seeds: 0 is out of range; give 1 to 100
study mw.yaml --output s --trial-gpus 1.5 => --trial-gpus: 1.5 is out of range; give a number above 0 and
study mw.yaml --output s => mw.yaml: no such file or folder; give a path that exists
compare => missing: RUN
compare nowhere => 'nowhere' is neither a directory nor an id or filter of MLflow runs; give a directory
compare 0123456789abcdef0123456789abcdef => no such database; set MLFLOW_TRACKING_URI to your server or database
compare "params.loss.loss = 'mw'" => no such database
compare . => .: holds no run; give a directory
compare . --output . => output .: is a directory; give the path of the HTML file to write
"""


@pytest.mark.parametrize("case", COMMANDS.strip("\n").split("\n"))
def test_a_command_is_refused(error_line: ErrorLine, letters: Path, tiny_encoder: Path, case: str) -> None:
    command, expected = case.split(" => ")
    stage, *words = shlex.split(command.replace("LETTERS", str(letters)).replace("MODEL", str(tiny_encoder)))
    assert expected in error_line(stage, *words)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("losses: {loss: mw}", "unknown section 'losses'; did you mean 'loss'?"),
        ("training: {batch_size: many}", "batch_size is 'many'; give a whole number"),
        ("training: {batch_size: true}", "batch_size is True; give a whole number"),
        ("loss: {learn_temperature: 1}", "learn_temperature is 1; give true or false"),
        ("loss: mw", "section 'loss' holds 'mw'; give `setting: value` lines"),
        ("- loss", "holds no sections; give `data:`, `model:`, `loss:` or `training:`"),
        ("1: {2: 3}", "unknown section 1; choose from"),
        ("loss: {1: 2}", "unknown setting 1; choose from"),
    ],
)
def test_a_configuration_file(error_line: ErrorLine, tmp_path: Path, content: str, expected: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    line = error_line("train", "--config", file)
    assert expected in line
    assert line.startswith((f"{file}: ", "--"))


def test_an_interrupted_run_of_other_settings(error_line: ErrorLine, work: Path, letters: Path) -> None:
    (work / "run").mkdir()
    there = Config(data=DataConfig(dataset=str(letters)))
    (work / "run" / "config.yaml").write_text(dump_config(there))
    line = error_line("train", "--dataset", letters, "--output", "run", "--seed", "7")
    assert line.startswith("output run: holds a run with other settings (training.seed is 0 there and 7 here); give")
    assert line.endswith("fresh=True to remove that run")
    (work / "run" / "config.yaml").write_text("loss: {")
    assert "run/config.yaml: is not YAML" in error_line("train", "--dataset", letters, "--output", "run")


def test_a_full_disk(error_line: ErrorLine, letters: Path, tiny_encoder: Path, full_disk: Path) -> None:
    before = sorted(full_disk.iterdir())
    model = ["--model", tiny_encoder, "--output", full_disk / "deep" / "out"]
    expected = f"{full_disk}/deep/out: no space left on the disk; free some space or write to another disk"
    assert error_line("train", "--dataset", letters, *model) == expected
    assert error_line("evaluate", "--datasets", letters, *model) == expected
    assert sorted(full_disk.iterdir()) == before


def test_debug_shows_the_traceback_of_a_user_error(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", ["--dataset", "nowhere", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: dataset nowhere")


def test_a_defect_keeps_its_traceback(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*words: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("raytriever.cli.train.check_run", broken)
    with pytest.raises(ZeroDivisionError):
        run("train", [])


def test_a_gpu_that_fails_ends_in_one_line(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*words: object) -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nFor debugging ...")

    monkeypatch.setattr("raytriever.cli.train.check_run", lost)
    assert run("train", []) == 2
    line = (
        "error: the GPU failed (CUDA error: unspecified launch failure); check nvidia-smi and the log of the kernel, "
    )
    assert capsys.readouterr().err.splitlines()[-1].startswith(line)
    with pytest.raises(torch.AcceleratorError):
        run("train", ["--debug"])


def damage(file: Path, row: int, content: bytes) -> None:
    lines = file.read_bytes().splitlines()
    lines[row - 1] = content
    file.write_bytes(b"".join(line + b"\n" for line in lines))


@pytest.mark.slow
def test_few_bad_rows_are_named_at_the_end_of_an_evaluation(
    letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(letters / "corpus.jsonl", 3, b"{")
    words = ["--datasets", str(letters), "--model", str(tiny_encoder), "--precision", "fp32"]
    assert run("evaluate", words) == 0
    out = capsys.readouterr().out
    named = Path("results") / "letters" / "quarantine.jsonl"
    assert f"1 bad row was left out (1 in {letters}/corpus.jsonl): see {named}\n" in out
    assert (work / named).read_text().count("\n") == 1
    # Corrected and evaluated again: no bad rows are reported.
    damage(letters / "corpus.jsonl", 3, b'{"_id": "d2", "text": "corrected"}')
    assert run("evaluate", words) == 0
    assert "bad row" not in capsys.readouterr().out
    assert not (work / named).exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # A question may look like a secret: it goes on to the next error.
        (["search", "--dataset", "nowhere", "Authorization: what is this header"], "no data set of this name"),
        (
            ["index", "--dataset", "nowhere", "--output", "x", "--query=what is /?key=abcdef"],
            "no data set of this name",
        ),
        (["search", "--dataset", "https://host/data?key=abcdef", "a question"], "there is a value of key in"),
    ],
)
def test_a_secret_is_refused_except_in_a_question(error_line: ErrorLine, words: list[str], expected: str) -> None:
    line = error_line(*words)
    assert expected in line
    assert "abcdef" not in line


def test_a_directory_of_other_files_is_refused(error_line: ErrorLine, work: Path) -> None:
    (work / "mine.yaml").write_text("data_sets: {docs: pydocs}\nvariants: {BM25: bm25}\n")
    folder = work / "s"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert "output s: is not empty and holds no study" in error_line("study", "mine.yaml", "--output", "s")
    (folder / SETTINGS).write_text(json.dumps({"study": "ratio", "variants": {}}))
    expected = error_line("study", "mine.yaml", "--output", "s")
    assert expected == "output s: holds another study (ratio; this command asks for mine); give another directory"
    (folder / SETTINGS).write_text('{"study": "mw-in')
    assert "study.json: is damaged or changed: it is not JSON" in error_line("study", "mine.yaml", "--output", "s")
