"""What part of the training state a tensor belongs to, by the path under which it was saved."""

from __future__ import annotations

import re
from typing import Final

from nantrap.checkpoints.audit.pickle_objects import Call
from nantrap.checkpoints.audit.verdict import Role

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
    if isinstance(tree, Call):
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
