"""`nantrap audit --config FILE`: does a checkpoint hold another learning rate than the configuration?

for path, finding in compare_with_config(report, "config.yaml"):
    print(path, finding)
"""

from __future__ import annotations

import ast
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nantrap.checkpoints.audit.facts import mappings_in
from nantrap.checkpoints.audit.layouts import contents_at
from nantrap.checkpoints.audit.verdict import AuditReport
from nantrap.checkpoints.store.resume import ResumeFinding
from nantrap.errors import FormatError, UsageError

_NAMES = ("lr", "learning_rate", "max_lr", "base_lr")
_SECTIONS = ("", "optimizer", "trainer", "training", "train", "optim", "optimizer.params", "scheduler")


def compare_with_config(report: AuditReport, config: str | os.PathLike[str]) -> list[tuple[str, ResumeFinding]]:
    """For each checkpoint of a report that holds another learning rate: its path, and the finding."""
    key, rate = configured_rate(config)
    found = []
    for audit in report.checkpoints:
        findings = (compare_tree(contents.tree, key=key, rate=rate) for contents in contents_at(audit.path))
        finding = next((finding for finding in findings if finding is not None), None)
        if finding is not None:
            found.append((audit.path, finding))
    return found


def configured_rate(config: str | os.PathLike[str]) -> tuple[str, float]:
    """The learning rate of a YAML or JSON file or a Python file of constants, and its key."""
    path = Path(config)
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: not a file; give a YAML, JSON or Python file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text file: {error.reason} at byte {error.start:,}") from error
    document = _parsed(path, text)
    if not isinstance(document, Mapping):
        raise FormatError(f"{path}: expected a mapping of names to values at the top")
    rates = {key: rate for key, value in _leaves(document, "") if (rate := _as_rate(value)) is not None}
    tried = (f"{section}.{name}".lstrip(".") for section in _SECTIONS for name in _NAMES)
    chosen = next((key for key in tried if key in rates), next(iter(rates)) if len(rates) == 1 else None)
    if chosen is not None:
        return chosen, rates[chosen]
    several = f": {', '.join(list(rates)[:4])} are all possible" if rates else ""
    raise UsageError(
        f"{path}: no learning rate was found{several}; looked for lr, learning_rate, optimizer.lr, trainer.lr"
    )


def compare_tree(tree: object, *, key: str, rate: float) -> ResumeFinding | None:
    """What loading a saved object would do to the configured learning rate."""
    words, brings = [], []
    for path, node in mappings_in(tree):
        groups = node.get("param_groups")
        if isinstance(groups, list):
            for index, group in enumerate(groups):
                peak = _peak(group) if isinstance(group, dict) else None
                if peak is not None and not math.isclose(peak[1], rate, rel_tol=1e-6):
                    name = f"{path or 'optimizer'}.param_groups[{index}]"
                    now = _as_rate(group.get("lr"))
                    shown = f"lr {now:.4g}" if now is not None else ""
                    shown += f", {peak[0]} {peak[1]:.4g}" if peak[0] != "lr" else ""
                    words.append(f"the optimizer state ({name}: {shown.lstrip(', ')})")
                    brings.append("optimizer")
                    break
        elif "last_epoch" in node and isinstance(node.get("base_lrs"), list) and "_schedule_phases" not in node:
            bases = [value for item in node["base_lrs"] if (value := _as_rate(item)) is not None]
            if bases and not math.isclose(bases[0], rate, rel_tol=1e-6):
                words.append(f"the scheduler state ({path or 'scheduler'}: base_lrs {bases[0]:.4g})")
                brings.append("scheduler")
    if not words:
        return None
    text = (
        f"the configuration says {rate:.4g} ({key}), and {' and '.join(dict.fromkeys(words))} "
        f"{'holds' if len(words) == 1 else 'hold'} another learning rate: loading overrides the configured one"
    )
    help_text = f'after loading, guard.check_resume(lr={rate:.4g}, take="configured") sets the configured learning rate'
    return ResumeFinding("rate", text, help_text, data={"sources": tuple(dict.fromkeys(brings)), "configured": rate})


def _peak(group: Mapping[Any, Any]) -> tuple[str, float] | None:
    for name in ("max_lr", "initial_lr", "lr"):
        rate = _as_rate(group.get(name))
        if rate is not None:
            return name, rate
    return None


def _parsed(path: Path, text: str) -> object:
    """A configuration as plain values: the constants of a Python file, JSON or YAML."""
    if path.suffix == ".py":
        return read_constants(text, path)
    try:
        if path.suffix == ".json":
            return json.loads(text)
        import yaml

        return yaml.safe_load(text)
    except ValueError as error:
        raise FormatError(f"{path}: not JSON: {error}") from error
    except Exception as error:  # yaml.YAMLError, without importing yaml at the top
        raise FormatError(f"{path}: not YAML: {error}") from error


def _leaves(document: Mapping[Any, Any], prefix: str, depth: int = 8) -> Iterator[tuple[str, object]]:
    """What may be a learning rate, with its dotted key. A YAML file may hold itself, so the depth has an end."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.", depth - 1) if depth else ()
        elif str(key).lower() in _NAMES:
            yield f"{prefix}{key}", value


def _as_rate(value: object) -> float | None:
    """A positive number; YAML reads `1e-4` as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        rate = float(value)
    except ValueError:
        return None
    return rate if rate > 0 and math.isfinite(rate) else None


def read_constants(text: str, path: Path, *, strict: bool = False) -> dict[str, Any]:
    """`NAME = value` at the top of a Python file, by the name in small letters.

    Args:
        text: the file's.
        path: its name, for errors.
        strict: anything else than a constant is an error; without it, it is skipped.
    """
    try:
        lines = ast.parse(text).body
    except SyntaxError as error:
        raise FormatError(f"{path}:{error.lineno}: not Python: {error.msg}") from None
    found: dict[str, Any] = {}
    for line in lines:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
            continue  # a docstring
        match line:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                try:
                    found[name.lower()] = ast.literal_eval(value)
                except ValueError:
                    if strict:
                        where = f"{path}:{line.lineno}"
                        raise FormatError(f"{where}: {name} is not a plain value; the file is read, not run") from None
            case _ if strict:
                raise FormatError(f"{path}:{line.lineno}: expected NAME = value; the file is read, not run")
    return found
