"""Secrets of addresses are found by their names, their places and their forms, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytriever.cli.main import run
from raytriever.core import masking
from raytriever.core.errors import DataError
from raytriever.core.masking import masked, refuse_secrets
from raytriever.data.data_settings import DataConfig
from raytriever.evaluation.annotation.annotation_settings import LlmConfig
from raytriever.retrieval.endpoints.endpoint_settings import check_service
from raytriever.training.run_config import Config, check_config

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
        with pytest.raises(DataError, match="leave it out, and set it in the environment") as caught:
            refuse_secrets(text, "dataset")
        assert HUSH not in str(caught.value)
    for text in HARMLESS:
        assert masked(text) == text
        refuse_secrets(text)


@given(st.text(max_size=80))
def test_masking_twice_is_masking_once(text: str) -> None:
    assert masked(masked(text)) == masked(text)


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


@pytest.mark.parametrize("name", ["OPENAI_KEY", "KEY", "GITHUB_PAT", "OPENAI_API_KEY", "my_key"])
def test_values_of_variables_that_are_named_like_keys_are_masked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "correct-horse-9")
    assert masked("no such file: correct-horse-9") == "no such file: ***"


@pytest.mark.parametrize("name", ["SSH_PUBLIC_KEY", "CACHE_KEY", "MONKEY", "PATH_OF_PAT_FILE"])
def test_values_of_other_variables_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "correct-horse-9")
    assert masked("no such file: correct-horse-9") == "no such file: correct-horse-9"


def test_the_value_of_the_key_variable_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_own_variables", set())
    monkeypatch.setenv("JUDGE", "correct-horse-9")
    check_service(LlmConfig(base_url="http://localhost:8000/v1", llm="judge", key_variable="JUDGE"))
    assert masked("no such file: correct-horse-9") == "no such file: ***"
