"""Which facts about a run its reports show: an allow-list, and no secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

_SECRET = re.compile(r"(key|token|secret|password|passwd|credential)", re.IGNORECASE)


def environment(info: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The facts of `run.json` that a report shows: an allow-list. Values after a secret's name are left out."""
    facts: list[tuple[str, str]] = []
    for name, label in (("nantrap", "nantrap"), ("torch", "torch"), ("python", "python"), ("model", "model"),
                        ("optimizer", "optimizer"), ("world_size", "ranks"), ("max_grad_norm", "clip")):  # fmt: skip
        found = info.get(name)
        if isinstance(found, (str, int, float)) and not isinstance(found, bool):
            facts.append((label, str(found)))
    parameters = info.get("parameters")
    if isinstance(parameters, int):
        facts.append(("parameters", f"{parameters:,}"))
    for name, label in (("precision", "precision"), ("devices", "device")):
        found = info.get(name)
        if isinstance(found, (list, tuple)) and found:
            facts.append((label, ", ".join(str(item) for item in found[:8])))
    if isinstance(info.get("loss_scaler"), bool):
        facts.append(("loss scaler", "yes" if info["loss_scaler"] else "no"))
    policy = info.get("policy")
    if isinstance(policy, Mapping):
        facts.append(("policy", _policy(policy)))
    if isinstance(info.get("started"), str):
        facts.append(("started", info["started"]))
    arguments = info.get("arguments")
    if isinstance(arguments, list) and arguments:
        facts.append(("command", command_text([str(item) for item in arguments])))
    return tuple(facts)


def command_text(arguments: list[str]) -> str:
    """A command line without what looks like a secret."""
    shown: list[str] = []
    hide = False
    for argument in arguments[:60]:
        name, sign, _ = argument.partition("=")
        if hide and not argument.startswith("-"):
            shown.append("...")
        elif sign and _SECRET.search(name):
            shown.append(f"{name}=...")
        else:
            shown.append(shlex.quote(argument))
        hide = argument.startswith("-") and not sign and bool(_SECRET.search(name))
    return " ".join(shown) + (" ..." if len(arguments) > 60 else "")


def _policy(policy: Mapping[str, Any]) -> str:
    """What the guard does with bad steps, in the order in which it does it."""
    parts = [str(policy.get("on_incident", "skip"))]
    if "max_consecutive_skips" in policy:
        parts.append(f"at most {policy['max_consecutive_skips']} in a row")
    if "then" in policy:
        parts.append(f"then {policy['then']}")
    if policy.get("then") == "rollback" and "max_rollbacks" in policy:
        parts.append(f"at most {policy['max_rollbacks']} rollbacks")
    return ", ".join(parts)
