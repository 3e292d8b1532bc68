"""The value of an expression in code: from the code, from shell scripts that start it, or from settings near it."""

from __future__ import annotations

import ast
from typing import Any

from nantrap.doctor.configuration.constants import dotted
from nantrap.doctor.configuration.names import plain
from nantrap.doctor.configuration.setting import UNKNOWN
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.module import Function, Module
from nantrap.doctor.source.wording import name_of


def possible_values(module: Module, node: ast.expr, function: Function, repository: Repository) -> list[Any]:
    """The values that an expression can have, as far as they are known."""
    if isinstance(node, ast.IfExp):
        return [
            *possible_values(module, node.body, function, repository),
            *possible_values(module, node.orelse, function, repository),
        ]
    name = dotted(node)
    if name:
        given = function.latest(name, node.lineno)
        if given is not None:
            return possible_values(module, given, function, repository)
    value = resolved_value(module, node, function, repository)
    return [] if value is UNKNOWN else [value]


def resolved_value(module: Module, node: ast.expr, function: Function, repository: Repository) -> Any:
    """A value in the code, else the value in the settings near the file under the same name."""
    value = module.value(node, function)
    if value is not UNKNOWN and not isinstance(value, list):
        leaf = plain(name_of(node))
        override = _from_lines(module, repository, leaf) if leaf in module.settings.defaults else UNKNOWN
        return value if override is UNKNOWN else override
    leaf = plain(name_of(node))
    if not leaf:
        return UNKNOWN
    found = {
        repr(setting.value): setting.value
        for source in repository.by_role("trainer")
        if source.file != module.file
        for setting in source.settings
        if setting.names[-1] == leaf and setting.known
    }
    return next(iter(found.values())) if len(found) == 1 else UNKNOWN


def _from_lines(module: Module, repository: Repository, name: str) -> Any:
    """The value that shell scripts give this setting when they start the module; unknown if they differ."""
    stem = module.file.replace("\\", "/").rsplit("/", 1)[-1]
    found = [
        setting.value
        for source in repository.sources
        if source.kind == "shell" and source.script.rsplit("/", 1)[-1] == stem
        for setting in source.settings
        if setting.names[-1] == name and setting.known
    ]
    return found[0] if len({repr(each) for each in found}) == 1 else UNKNOWN


def configured_value(module: Module, repository: Repository, key: str) -> Any:
    """What a key is set to: in a launch line, in the file itself, or in the settings near it."""
    beside = repository.configured(module.file, key)
    for source in repository.sources:
        if source.file == module.file and source.kind != "argparse":
            setting = source.first(key)
            if setting is not None and setting.known and setting.value is not None:
                return setting.value
    if beside is not None:
        return beside[0]
    for source in repository.sources:
        if source.file == module.file and source.kind == "argparse":
            setting = source.first(key)
            if setting is not None and setting.known:
                return setting.value
    return UNKNOWN
