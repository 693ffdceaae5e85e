"""What a user sees: errors that name settings, no control character, and no secret of an address."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytriever.cli.main import run
from raytriever.cluster.ingest import deserialize_error, serialize_error
from raytriever.core import masking
from raytriever.core.errors import ConfigError, DataError, StorageError, UserError, flag_of, setting
from raytriever.core.masking import masked, refuse_secrets
from raytriever.core.setting_declarations import check_options, option
from raytriever.core.terminal import one_line, presentable, printable, show
from raytriever.data.data_settings import DataConfig
from raytriever.evaluation.annotation.annotation_settings import LlmConfig
from raytriever.retrieval.external_encoders.endpoint_settings import check_service
from raytriever.training.run_config import Config, check_config

HOSTILE = "\x1b]52;c;aGk=\x07 a\rb \x9b31m \u202egnp.exe \u2066x\u2069 \x00 \x7f \ud800 \U000e0041"
BIDI = {"RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"}


@given(st.text(st.characters(), max_size=60))
def test_no_control_character_is_left_and_nothing_else_is_lost(text: str) -> None:
    shown = printable(text)
    for character in set(shown) - {"\n", "\t"}:
        assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in BIDI
    assert printable(shown) == shown
    shown.encode()
    if not any(unicodedata.category(c) in ("Cc", "Cs", "Cf", "Zl", "Zp") for c in text):
        assert shown == text


@given(st.text(max_size=60))
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
    assert "\t" not in one_line(text)


def test_a_hostile_text_is_shown_as_escapes_and_letters_of_any_script_stay() -> None:
    text = "می\u200cخواهم \u200fשלום 👩\u200d💻 é 漢字"
    assert printable(text) == text
    assert printable("\x1b[2J\r\u202e") == r"\x1b[2J\r\u202e"
    assert one_line("a\nerror: b\x85c") == "a error: b c"


def test_a_terminal_without_the_letters_shows_escapes() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert presentable("café", stream) == r"caf\xe9"


def test_secrets_are_masked_where_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show("see https://host/x?sig=hushhush")
    assert capsys.readouterr().out == "see https://host/x?sig=***\n"


def test_an_error_line_holds_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("search", ["x", "--dataset", f"no{HOSTILE[:-3]}where"]) == 2
    err = capsys.readouterr().err
    assert printable(err) == err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        (">/dev/full", 2, "error: standard output: no space left on the disk"),
        ("<&- >&- 2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_standard_streams_that_fail(redirection: str, code: int, message: str) -> None:
    program = "import time; time.sleep(0.3); from raytriever.cli.main import run; raise SystemExit(run())"
    line = f'"$0" -c "$1" search --help {redirection}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("\n") <= 1


def test_an_error_whose_reader_has_gone_keeps_its_exit_code() -> None:
    program = "import time; time.sleep(0.3); from raytriever.cli.main import run; raise SystemExit(run())"
    line = '"$0" -c "$1" search x --nonsense 2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}'
    assert subprocess.run(["bash", "-c", line, sys.executable, program], timeout=60, check=False).returncode == 2


def error() -> ConfigError:
    remedy = f"give {setting('fresh', True)}, {setting('duplicates', False)} or {setting('num_negatives')} 5"
    return ConfigError(f"is as {setting('max_steps')}", setting("dataset", "a b/c"), remedy)


def test_settings_in_errors_and_flags_in_advice() -> None:
    assert str(error()) == "dataset a b/c: is as max_steps; give fresh=True, duplicates=False or num_negatives 5"
    assert (flag_of("max_bad_rows"), flag_of("duplicates", False)) == ("--max-bad-rows", "--no-duplicates")


@pytest.mark.parametrize("kind", [UserError, ConfigError, StorageError])
def test_an_error_keeps_its_settings_on_the_way(kind: type[UserError]) -> None:
    failure = kind(*error().args)
    sent = pickle.loads(pickle.dumps(failure))  # noqa: S301
    for same in (sent, failure.at(failure.args[1])):
        assert type(same) is kind
        assert same.args == failure.args
    assert deserialize_error(serialize_error(failure)).args == failure.args


def test_an_error_within_another_place() -> None:
    assert error().within("stage 'warm'").where == "stage 'warm': dataset a b/c"
    assert ConfigError("is wrong").within("variant mw").where == "variant mw"


@dataclass(frozen=True)
class Settings:
    batch_size: int = option(8, "size", minimum=1, maximum=2**32 - 1)
    fraction: float = option(0.5, "fraction", above=0, maximum=1)
    name: str | None = option(None, "name", choices=("mean", "cls"))
    free: float = option(1.0, "anything")


def test_the_ends_of_a_range_are_allowed() -> None:
    for size in (1, 2**32 - 1):
        check_options(Settings(batch_size=size, fraction=1.0, name="cls", free=-1e300))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0 is out of range; give a value of at least 1"),
        ({"batch_size": 2**32}, "batch_size: 4294967296 is out of range; give a value of at most 4294967295"),
        ({"fraction": 0.0}, "fraction: 0.0 is out of range; give a value above 0"),
        ({"fraction": float("nan")}, "fraction: nan is out of range; give a finite number"),
        ({"free": float("-inf")}, "free: -inf is out of range; give a finite number"),
        ({"name": "men"}, "name: unknown value 'men'; did you mean 'mean'?"),
    ],
)
def test_an_invalid_value_is_reported_by_its_flag(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_options(Settings(**settings))
    assert str(caught.value) == message


HUSH = "Hush0123456789Hush0123456789Hush0123"
SECRET = [
    f"s3://key:{HUSH}@bucket/x",
    f"https://user:{HUSH}@host/x",
    f"https://{HUSH}@host/x",
    f"postgresql://u:p/{HUSH}#x@host/db",
    f"https://account.blob.core.windows.net/c/f.jsonl?sp=r&sig={HUSH}",
    f"https://bucket.s3.amazonaws.com/f?X-Amz-Signature={HUSH}",
    f"https://host/f?AWSAccessKeyId={HUSH}&Expires=1",
    f"https://host/f?api_key={HUSH}",
    f"https://host/f?key={HUSH}",
    f"https://host/f?a=1;pwd={HUSH}",
    f"https://host/f?auth={HUSH}",
    f"https://host/f?%73ig={HUSH}",
    f"https://host/f#access_token={HUSH}",
    f"s3://bucket/x?region=r&anything={HUSH}",
    f"gs://bucket/x?whatever={HUSH}",
    f"abfss://c@a.dfs.core.windows.net/x?sv={HUSH}",
    f"container/x?sig={HUSH}",
    f"DefaultEndpointsProtocol=https;AccountKey={HUSH}==;EndpointSuffix=x",
    f"Authorization: Bearer {HUSH}",
    f"hf_{HUSH}",
    f"sk-{HUSH}",
    f"ghp_{HUSH}",
    "AKIA0123456789ABCDEF",
    f"github_pat_{HUSH}",
    f"glpat-{HUSH}",
    f"AIza{HUSH}",
    f"xoxb-{HUSH}",
    f"eyJ{HUSH}.eyJ{HUSH}.{HUSH}",
]
HARMLESS = [
    "s3://bucket/x?region=eu-west-1&endpoint_override=localhost%3A9000&scheme=http",
    "abfss://container@account.dfs.core.windows.net/x",
    "gs://anonymous@bucket/x",
    "hf://datasets/org/name@refs%2Fconvert/file",
    "http://localhost:5000/users/a@b",
    "https://host/v1?api-version=2024-10-21&monkey=1&author=me",
    "sorted(names, key=len)",
    "sqlite:////tmp/a@b.db",
    "/tmp/hf_models/sk-learn",
]


def test_a_secret_is_masked_and_refused_and_what_is_none_stays() -> None:
    for text in SECRET:
        for around in (text, f"cannot read '{text}' (404)", f"{text}, {text}"):
            assert HUSH not in masked(around)
            assert "AKIA0" not in masked(around)
            assert "***" in masked(around)
        with pytest.raises(DataError, match="put the secret into an environment variable") as caught:
            refuse_secrets(text, "dataset")
        assert HUSH not in str(caught.value)
    for text in HARMLESS:
        assert masked(text) == text
        refuse_secrets(text)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--dataset", SECRET[1]],
        ["train", f"--dataset={SECRET[4]}"],
        ["evaluate", "--datasets", "a", SECRET[5]],
        ["annotate", "--base-url", SECRET[8]],
        ["search", "x", "--datset", SECRET[1]],
    ],
)
def test_no_command_takes_a_secret(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words[0], words[1:]) == 2
    out, err = capsys.readouterr()
    assert HUSH not in out + err
    assert not list(tmp_path.rglob("*"))


def test_settings_of_programs_and_files_are_refused_too() -> None:
    with pytest.raises(DataError, match=r"dataset s3://\*\*\*@b: there is a password in its address"):
        check_config(Config(data=DataConfig(dataset=f"s3://a:{HUSH}@b")))


@pytest.mark.parametrize("name", ["OPENAI_KEY", "KEY", "GITHUB_PAT", "my_key", "SSH_PUBLIC_KEY", "CACHE_KEY", "MONKEY"])
def test_values_of_variables_that_are_named_like_keys_are_masked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "correct-horse-9")
    is_secret = name not in ("SSH_PUBLIC_KEY", "CACHE_KEY", "MONKEY")
    assert masked("no such file: correct-horse-9") == f"no such file: {'***' if is_secret else 'correct-horse-9'}"


def test_the_value_of_the_key_variable_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_own_variables", set())
    monkeypatch.setenv("JUDGE", "correct-horse-9")
    check_service(LlmConfig(base_url="http://localhost:8000/v1", llm="judge", key_variable="JUDGE"))
    assert masked("no such file: correct-horse-9") == "no such file: ***"
