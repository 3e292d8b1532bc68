"""What a checkpoint stores about itself: step, epoch, learning rate, schedule, loss scale; and the role of each tensor.

Facts are shown, and partly judged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nantrap.checkpoints.audit.pickles import PickleCall
from nantrap.checkpoints.audit.readers.torch_tensors import number_of
from nantrap.checkpoints.audit.scan import TensorScan
from nantrap.checkpoints.audit.verdict import Role

_STEP_KEYS = ("global_step", "global_steps", "step", "steps", "iteration", "iter", "num_updates")
_DEPTH = 6


class Facts:
    """Facts of one file, and the numbers among them that must be finite: (name, role, value)."""

    def __init__(self) -> None:
        self.shown: dict[str, Any] = {}
        self.numbers: list[tuple[str, Role, float]] = []


def facts_of(tree: object, scans: Mapping[str, TensorScan]) -> Facts:
    """Facts from the saved object; a learning rate or a step that was saved as a tensor is looked up among the scanned
    ones."""
    facts = Facts()
    if isinstance(tree, dict):
        step = next((_whole(tree[key]) for key in _STEP_KEYS if key in tree), None)
        epoch = number_of(tree.get("epoch"))
        if step is not None:
            facts.shown["step"] = step
        if epoch is not None and math.isfinite(epoch):
            facts.shown["epoch"] = epoch
    for path, node in mappings_in(tree):
        if isinstance(node.get("param_groups"), (list, dict)):
            _optimizer(path, node, scans, facts)
        elif "growth_factor" in node and "scale" in node:
            _scaler(path, node, facts)
        elif "last_epoch" in node:
            _scheduler(path, node, facts)
    return facts


def facts_of_trainer_state(text: str) -> dict[str, Any]:
    """Facts from the `trainer_state.json` of transformers."""
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(state, dict):
        return {}
    facts = {"step": _whole(state.get("global_step")), "epoch": number_of(state.get("epoch"))}
    return {key: value for key, value in facts.items() if value is not None and math.isfinite(value)}


def _optimizer(path: str, node: Mapping[Any, Any], scans: Mapping[str, TensorScan], facts: Facts) -> None:
    """Add learning rates and the step count of an optimizer's state to the facts."""
    rates = []
    groups = node["param_groups"]  # a distributed checkpoint keeps a list as a mapping from its positions
    for position, group in enumerate(groups.values() if isinstance(groups, dict) else groups):
        if not isinstance(group, dict):
            continue
        name = _join(path, f"param_groups.{position}.lr")
        rate = number_of(group.get("lr"))
        if rate is None and name in scans and scans[name].stats is None:
            rate = scans[name].low
        if rate is not None:
            facts.numbers.append((name, "optimizer", rate))
            rates.append(rate)
    if rates:
        facts.shown.setdefault("lr", [_shown(rate) for rate in dict.fromkeys(rates)])
    counts = [
        scans[name].high
        for name in scans
        if name.startswith(_join(path, "state.")) and name.endswith(".step") and scans[name].stats is None
    ]
    states = node.get("state")
    if isinstance(states, dict):
        counts += [n for s in states.values() if isinstance(s, dict) and (n := number_of(s.get("step"))) is not None]
    counts = [count for count in counts if math.isfinite(count)]
    if counts:
        facts.shown.setdefault("optimizer_step", int(max(counts)))


def _scaler(path: str, node: Mapping[Any, Any], facts: Facts) -> None:
    scale = number_of(node["scale"])
    if scale is not None:
        facts.numbers.append((_join(path, "scale"), "scaler", scale))
        facts.shown.setdefault("scale", _shown(scale))


def _scheduler(path: str, node: Mapping[Any, Any], facts: Facts) -> None:
    """Add position and learning rates of a schedule's state to the facts."""
    last_epoch = _whole(node["last_epoch"])
    if last_epoch is not None:
        facts.shown.setdefault("scheduler_step", last_epoch)
    for key, label in (("_last_lr", "scheduler_lr"), ("base_lrs", "base_lr")):
        values = node.get(key)
        rates = [n for v in values if (n := number_of(v)) is not None] if isinstance(values, list) else []
        if rates:
            facts.shown.setdefault(label, [_shown(rate) for rate in dict.fromkeys(rates)])
            facts.numbers += [(_join(path, f"{key}.{i}"), "scheduler", rate) for i, rate in enumerate(rates)]


def mappings_in(tree: object) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Every mapping of the saved object, not too deep, each once."""
    seen: set[int] = set()
    pending: list[tuple[tuple[str, ...], object]] = [((), tree)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, PickleCall):
            node = node.state if isinstance(node.state, dict) else node.pairs or {}
        if len(path) > _DEPTH or not isinstance(node, (dict, list)) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            yield ".".join(path), node
            inner = [(str(key), value) for key, value in node.items() if isinstance(key, (str, int))]
        else:
            inner = [(str(position), value) for position, value in enumerate(node)]
        pending.extend(((*path, key), value) for key, value in reversed(inner))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _whole(value: object) -> int | None:
    number = number_of(value)
    return int(number) if number is not None and math.isfinite(number) else None


def _shown(value: float) -> float | str:
    """JSON has no form for a number that is not finite."""
    return value if math.isfinite(value) else str(value)


# ---- what part of the training state a tensor belongs to, by the path under which it was saved


_PATTERNS: Final[tuple[tuple[Role, re.Pattern[str]], ...]] = (
    ("ema", re.compile(r"(.*[_\-.])?(ema|swa|shadow)([_\-.].*)?")),
    ("scheduler", re.compile(r".*sched.*")),
    ("optimizer", re.compile(r"(.*[_\-])?optim.*|.*optim_states.*|param_groups")),
    ("scaler", re.compile(r".*scaler.*|.*amp_scaling.*|amp|mixedprecision.*")),
    ("rng", re.compile(r".*(rng|random)_?states?.*|.*_rng.*|rng.*")),
    ("callbacks", re.compile(r"callbacks|loops|sampler.*|.*dataloader.*|hyper_?param.*|train(er|ing)_.*")),
    ("data", re.compile(
        r"((train|val|valid|test|eval)_)?(images?|labels?|targets?|inputs?|features?|samples?|data(set)?|datasets|x|y)|"
        r"(x|y)_(train|val|valid|test)|(train|val|valid|test)(_?(set|split|data|images|labels))?"
    )),
    ("model", re.compile(
        r"(.*[_\-])?(model|module|state_dict|net|network|weights|params)([_\-].*)?|.*model_states.*|unet|vae|encoder|"
        r"decoder|generator|discriminator"
    )),
)  # fmt: skip


def role_of_word(word: str) -> Role | None:
    """The role of a key or a file name: `optimizer_state_dict` is `optimizer`. `None` if it is not known."""
    lowered = word.lower()
    return next((role for role, pattern in _PATTERNS if pattern.fullmatch(lowered)), None)


def role_of_path(path: tuple[str, ...], *, default: Role) -> Role:
    """The role of a tensor. The first key with a known role wins; a dotted key is a parameter's own name and ends the
    search."""
    for key in path:
        if "." in key:
            break
        role = role_of_word(key)
        if role is not None:
            return role
    return default


def default_role(tree: object) -> Role:
    """The role where no key has a known one: `model` for a bare state dict, `other` next to named sections and in a
    list."""
    if isinstance(tree, PickleCall):
        tree = tree.state if isinstance(tree.state, dict) else tree.pairs  # a whole module, a subclass of dict
        return "model" if tree else "other"
    if not isinstance(tree, dict):
        return "model" if tree is None else "other"
    if "param_groups" in tree and "state" in tree:
        return "optimizer"
    sections = any(
        isinstance(value, (dict, list)) and isinstance(key, str) and role_of_word(key) is not None
        for key, value in tree.items()
    )
    return "other" if sections else "model"
