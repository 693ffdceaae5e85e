"""Detection of secrets in texts, addresses and environment variables. A secret is replaced by `***`, or refused.

Addresses appear in logs, settings, MLflow and reports, so a secret in an address would be copied to all of these.
Flags, settings and data addresses with a secret are refused; every other text is masked before it is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

from raytriever.core.errors import DataError, setting

HIDDEN = "***"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"
_ADDRESS = re.compile(rf"{_SCHEME}[^\s'\"<>]+")
# The user and password of an address: all before the last `@`, because a password may contain an `@`.
_USER = re.compile(rf"({_SCHEME})([^\s/?#'\"]+)(?=@)")
# In addresses with these schemes, the part before `@` names a container or a public account, never a token.
_PLAIN_USERS = {"abfs://", "abfss://", "wasb://", "wasbs://", "gs://", "ssh://", "git+ssh://"}
# `user:password@` whose password contains `/`, `?` or `#`. A port after the colon is not a password.
_PASSWORD = re.compile(r"(?<=://)(?![^\s/?#'\"]*@)[^\s/?#:@'\"]*:(?!\d+(?:[/?#]|$))[^\s'\"]+(?=@)")
_PARAMETER = re.compile(r"(?<=[?&;#])([^\s=?&;#'\"]+)=([^\s?&;#'\"<>]+)")
# Names whose values are secret everywhere: parts of cloud connection strings and of request headers.
_ASSIGNED = re.compile(
    r"\b(AccountKey|SharedAccessKey|SharedAccessSignature|AWSAccessKeyId|GoogleAccessId|aws_secret_access_key|"
    r"X-Amz-(?:Signature|Credential|Security-Token)|Authorization|X-Api-Key)\b(?:['\"]?\s*[=:]\s*['\"]?)"
    r"((?:Bearer |Basic )?[^\s&;,'\"<>]+)",
    re.IGNORECASE,
)
# Tokens that are recognized by their form alone: Hugging Face, OpenAI and similar, AWS, GitHub, GitLab, Google, Slack,
# JSON web tokens, bearer headers.
_TOKEN = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[oprsu]_[A-Za-z0-9]{30,}|"
    r"\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{20,}|\bAIza[A-Za-z0-9_-]{30,}|\bxox[a-z]-[A-Za-z0-9-]{10,}|"
    r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?|(?<=\bBearer )[A-Za-z0-9._~+/=-]{16,}"
)
_SECRET_WORD = re.compile(
    "sig|signature|key|apikey|accesskey|accountkey|secretkey|privatekey|pwd|pass|passwd|password|passphrase|auth|"
    "authorization|token|accesstoken|secret|credential|credentials|jwt|bearer|sas|accessid"
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Stores whose addresses have signatures and keys as parameters, and the parameters that never hold a secret.
_STORES = re.compile(
    r"^(s3a?|gs|gcs|abfss?|az|adl|wasbs?|oss|r2|https?://[^/?#]*"
    r"(\.amazonaws\.com|\.blob\.core\.windows\.net|\.dfs\.core\.windows\.net|storage\.googleapis\.com))\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    "region|scheme|endpoint_override|allow_bucket_(?:creation|deletion)|force_virtual_addressing|anonymous|"
    "retry_limit_seconds|(?:blob|dfs)_storage_(?:authority|scheme)|enable_tls|versionid"
)
_SECRET_VARIABLE = re.compile(
    r"(PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIALS?|SAS|SIGNATURE|CONNECTION_STRING|"
    r"(API|ACCESS|ACCOUNT|AUTH|PRIVATE|SECRET)_?KEY)(_ID)?$|(^|_)(?<!PUBLIC_)(?<!CACHE_)(?<!SORT_)KEY$|(^|_)PAT$",
    re.IGNORECASE,
)
_own_variables: set[str] = set()  # environment variables that hold a secret, according to a setting
_SHORTEST = 6  # minimum length of a secret in characters; shorter ones would match words of ordinary texts


class Secret(NamedTuple):
    """Secret in a text: its start, its end, and a description for messages."""

    start: int
    end: int
    kind: str


def masked(text: str) -> str:
    """Return a text with `***` in place of every secret.

    In an address, the user, the password and parameters such as `sig=` and `key=` are secret. In the address of an
    object store, every parameter is secret, except those known to be harmless. In all texts, tokens of known forms and
    the values of environment variables with names such as `..._TOKEN` or `..._PASSWORD` are secret."""
    end, pieces = 0, []
    for secret in _secrets(text):
        pieces += [text[end : secret.start], HIDDEN]
        end = secret.end
    text = "".join([*pieces, text[end:]])
    for value in sorted(_environment_secrets(), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def mask_variable(name: str) -> None:
    """Mask the value of an environment variable from now on. A setting says that the variable holds a secret."""
    _own_variables.add(name)


def refuse_secrets(text: str, name: str | None = None) -> None:
    """Raise `DataError` if a flag, a setting or an address holds a secret.

    Args:
        text: the value of the flag or setting, or an address.
        name: name of the setting; None for an address.
    """
    for secret in _secrets(text):
        remedy = "remove it; put the secret into an environment variable, such as HF_TOKEN, on every node"
        what = f"there is {secret.kind} in {'its address' if '://' in text else 'it'}"
        raise DataError(what, setting(name, masked(text)) if name else masked(text), remedy)


def _secrets(text: str) -> Iterator[Secret]:
    secrets = [
        Secret(*match.span(2), "a password" if ":" in match[2] else "a user")
        for match in _USER.finditer(text)
        if ":" in match[2] or match[1].lower() not in _PLAIN_USERS
    ]
    secrets += [Secret(*match.span(), "a password") for match in _PASSWORD.finditer(text)]
    secrets += [Secret(*match.span(), "a token") for match in _TOKEN.finditer(text)]
    secrets += [Secret(*match.span(2), f"a value of {match[1]}") for match in _ASSIGNED.finditer(text)]
    stores = [match.span() for match in _ADDRESS.finditer(text) if _STORES.match(match[0])]
    for match in _PARAMETER.finditer(text):
        name = unquote(match[1])
        of_store = any(start <= match.start() < end for start, end in stores)
        if _is_secret(name) or (of_store and not _HARMLESS.fullmatch(name.lower())):
            secrets.append(Secret(*match.span(2), f"a value of {name}"))
    end = 0
    for secret in sorted(secrets, key=lambda match: (match.start, -match.end)):
        if secret.start >= end:
            yield secret
            end = secret.end


def _is_secret(name: str) -> bool:
    """Return True if a parameter's name contains a word such as `key` or `auth`; `monkey` and `author` do not."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(map(_SECRET_WORD.fullmatch, [*words, "".join(words)]))


def _environment_secrets() -> set[str]:
    named = {value for name, value in os.environ.items() if name in _own_variables or _SECRET_VARIABLE.search(name)}
    _, _, rest = os.environ.get("MLFLOW_TRACKING_URI", "").partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at:
        named |= {user, user.partition(":")[2]}
    # A value may be the path of a file of credentials. The path itself is not secret.
    return {value for value in named if len(value) >= _SHORTEST and not os.path.exists(value)}
