"""Write README.md with the coverage table of the cases: `python tests/adversarial/write_readme.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from hostile.cases import CASES
from hostile.coverage import coverage_table

TEXT = """# Hostile commands

{cases} commands that a mistake, an accident or an attacker could bring about. Each is data in `hostile/cases/`: the
files that are made, the words of the command line, the exit code and what the last line must hold. A case of `rows`:

```python
Case(
    "a document that is not JSON",
    "prepare --dataset letters --model model --output out --max-bad-rows 0",
    "letters/corpus.jsonl row 3: not JSON",
    (row("letters/corpus.jsonl", 3, "{{"),),
)
```

`make test` runs {fast} of them, `make test-all` all. Some of them by name:

```bash
python -m pytest tests/adversarial -k "secrecy or terminal"
```

## What holds for every one of them (`hostile/checking.py`)
- The command ends within its limit (60 s unless the case says otherwise) with the exit code of the case.
- No traceback is printed, and no warning of Python. With exit code 2 the last line of standard error begins with
  `error: ` and has at most 2,000 characters.
- No control character is printed: no escape sequence, no carriage return, no bidirectional override.
- A secret that lies in the environment and in the hostile flags is neither printed nor written to any file.
- A command that fails leaves nothing new, and no command leaves files aside. Nothing that was there is removed.
- No process that the command started is left.

Materials that cases alter (a data set, an encoder, a prepared data set, embeddings, an index, a run, ...) are made once
by the commands themselves. One process imports everything heavy and forks for each command, so that most cases take a
tenth of a second; cases about the standard streams start a process of their own (`hostile/server.py`, `running.py`).

## Coverage
Cases by stage and area. After a run the same table is printed, `passed/all` where cases failed.

{table}"""


def readme() -> str:
    """The text of README.md."""
    fast = sum(case.fast for case in CASES)
    return TEXT.format(cases=len(CASES), fast=fast, table=coverage_table(CASES))


if __name__ == "__main__":
    Path(__file__).with_name("README.md").write_text(readme(), encoding="utf-8")
