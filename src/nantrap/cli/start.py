"""What `nantrap` alone shows: what to do first, by problem."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_FIRST: Final = (
    ("my loss is NaN", "run", "nantrap run train.py --your --options"),
    ("it went NaN last night", "report", "nantrap report runs/exp1"),
    ("a run is training now", "watch", "nantrap watch runs/exp1"),
    ("the same in a browser, for many runs", "serve", "nantrap serve runs"),
    ("is this run healthy?", "check", "nantrap check runs/exp1"),
    ("an old checkpoint", "audit", "nantrap audit checkpoints/"),
    ("before training: configuration and code", "doctor", "nantrap doctor ."),
    ("before training: the model", "preflight", "nantrap preflight module:factory"),
    ("before training: the data", "data", "nantrap data dataset/"),
    ("a code or a word from a message", "explain", "nantrap explain NT203"),
    ("what does all this look like?", "demo", "nantrap demo pixeldlm"),
)


def start_text(commands: Collection[str]) -> str:
    """One line for each problem, with the command for it."""
    shown = [(why, line) for why, command, line in _FIRST if command in commands]
    widest = max(len(why) for why, _ in shown)
    lines = [f"  {why:<{widest}}   {line}" for why, line in shown]
    return "\n".join(
        [
            "nantrap stops NaN and Inf before they reach the weights, names the guilty operation, proves the cause.",
            "",
            "What to do first:",
            *lines,
            "",
            "`nantrap --help` lists every command, `nantrap COMMAND --help` explains one.",
        ]
    )
