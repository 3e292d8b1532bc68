"""`run.json`: what was run. An allow-list of facts; never the environment, never data."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nantrap._version import __version__
from nantrap.record.durable import remove_orphans, write_atomically

SCHEMA = "nantrap.run/1"
REDACTED = "[redacted]"

_SECRET_WORDS = frozenset((
    "password", "passwd", "passphrase", "pwd", "secret", "secrets", "token", "apikey", "credential", "credentials",
    "auth", "authorization", "bearer", "cookie", "key",
))  # fmt: skip
_NOT_SECRET = re.compile(
    r"(pad|bos|eos|unk|mask|cls|sep|image|query|value|sort|group|data|state|label|primary)[-_.](token|key)"
)
_SECRET_VALUES = re.compile(
    r"(hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abprs]-|AKIA|ASIA|ya29\.)[\w-]{12,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]*"
    r"|[0-9a-f]{40}"
)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def write_run_info(run_dir: str | os.PathLike[str], facts: dict[str, Any]) -> Path:
    """Describe this start of the run. A second start in the same folder is added to the first, which stays."""
    path = Path(run_dir) / "run.json"
    start = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "arguments": redacted(sys.argv),
        "python": platform.python_version(),
        "nantrap": __version__,
        "torch": _torch_version(),
        "pid": os.getpid(),
        **_without_home(facts),
    }
    remove_orphans(Path(run_dir))
    remove_orphans(Path(run_dir) / "incidents")
    document: dict[str, Any] = {"schema": SCHEMA, **start}
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(earlier, dict) and earlier.get("schema") == SCHEMA:
            document = {**earlier, "resumed": [*_list(earlier.get("resumed")), start]}
    except (OSError, ValueError, RecursionError):
        pass
    write_atomically(path, json.dumps(document, indent=2) + "\n")
    return path


def redacted(arguments: Sequence[str]) -> list[str]:
    """Command line arguments without secrets: values of options that are named like one, tokens, and credentials.

    Also without the user's home folder, which names the user. `--key 5` keeps its value: a number is not a secret.
    """
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if hide_next and not argument.startswith("--"):
            shown.append(REDACTED if not _is_number(argument) else argument)
        elif separator and _is_secret(name) and value and not _is_number(value):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(_without_home(_SECRET_VALUES.sub(REDACTED, _CREDENTIALS.sub(f"{REDACTED}@", argument))))
        hide_next = not separator and argument.startswith("-") and _is_secret(argument)
    return shown


def _is_secret(name: str) -> bool:
    """Whether an option is named like a secret: its last word is one, as in `--wandb-api-key`."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().lstrip("-+~")
    words = re.split(r"[-_.:/]", plain)
    if _NOT_SECRET.fullmatch("_".join(words[-2:])):
        return False
    return words[-1] in _SECRET_WORDS or any(word in _SECRET_WORDS - {"key", "token", "auth"} for word in words)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.]{1,6}", text) is not None


def _without_home(value: Any) -> Any:
    """The same with `~` in place of the home folder, in every text."""
    home = os.path.expanduser("~")
    if isinstance(value, str):
        return re.sub(rf"{re.escape(home)}(?=[/\\]|$)", "~", value) if len(home) > 1 else value
    if isinstance(value, dict):
        return {key: _without_home(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_home(item) for item in value]
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _torch_version() -> str | None:
    torch = sys.modules.get("torch")
    return None if torch is None else str(torch.__version__)
