"""Launch lines in shell scripts: variables, the launcher's flags, the script and the script's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nantrap.doctor.configuration.names import meaning, named_setting, plain
from nantrap.doctor.configuration.setting import UNKNOWN, Setting, SettingSource, Span, scalar

_ASSIGNMENT: Final = re.compile(
    r"(?:export\s+|declare\s+(?:-\w+\s+)?|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)$", re.DOTALL
)
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?[-=]([^}]*))?\}|([A-Za-z_]\w*))")
_TOKEN: Final = re.compile(
    r"""(?:[^\s"'#;|&<>\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*'|(?<=\S)#)+|[;|&<>]+|#[^\n]*|\\\n""", re.DOTALL
)
_LAUNCHERS: Final = frozenset(
    ["accelerate", "torchrun", "deepspeed", "python", "python3", "python3.10", "python3.11", "python3.12", "horovodrun"]
)
_FLAGS_WITHOUT_VALUE: Final = frozenset([
    "multi_gpu", "use_deepspeed", "use_fsdp", "no_python", "standalone", "tpu", "main_training_function", "module",
    "m", "u", "cpu",
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of the script with its place; `text` has the variables put in."""

    text: str
    raw: str
    start: int
    line: int
    origin: _Word | None = None
    """Where the value is if the word is a variable."""


def read_shell(text: str, *, file: str, extra: Mapping[str, str] | None = None) -> list[SettingSource]:
    """One source for each launch line (and one for its launcher's flags), in order."""
    variables: dict[str, _Word] = {}
    sources: list[SettingSource] = []
    used = False
    for words in _commands(text):
        words = [_substituted(word, variables) for word in words]
        prefix: dict[str, _Word] = {}
        while words:
            found = _ASSIGNMENT.match(words[0].text if words[0].text not in ("export", "local") else "")
            if words[0].text in ("export", "local", "declare", "readonly") and len(words) > 1:
                words = words[1:]
                continue
            if found is None:
                break
            name = found.group(1)
            offset = words[0].raw.index("=") + 1
            value = _unquoted(words[0].raw[offset:])
            origin = _Word(_expand(value, variables), words[0].raw[offset:], words[0].start + offset, words[0].line)
            prefix[name] = origin
            words = words[1:]
        if not words:
            variables.update(prefix)
            continue
        launch = _launch(words, prefix, file=file, extra=extra)
        used = used or bool(launch)
        sources += launch
    if not used and variables:  # a file of variables that another one sources
        settings = [_setting((name,), word, file=file, extra=extra) for name, word in variables.items()]
        if any(setting.key for setting in settings):
            sources.append(SettingSource(file, "shell", tuple(settings)))
    return sources


def _commands(text: str) -> list[list[_Word]]:
    """The words of each command; a backslash at the end of a line continues it."""
    commands: list[list[_Word]] = []
    current: list[_Word] = []
    position, line = 0, 1
    for token in _TOKEN.finditer(text):
        between = text[position : token.start()]
        if "\n" in between and current:
            commands.append(current)
            current = []
        line += between.count("\n")
        position = token.end()
        raw = token.group()
        if raw == "\\\n" or raw.startswith("#"):
            pass
        elif raw[0] in ";|&<>":
            if raw[0] not in "<>" and current:
                commands.append(current)
                current = []
        else:
            current.append(_Word(_unquoted(raw), raw, token.start(), line))
        line += raw.count("\n")
    return [*commands, current] if current else commands


def _unquoted(raw: str) -> str:
    return re.sub(r"""(["'])(.*?)\1""", r"\2", raw, flags=re.DOTALL).replace("\\\n", "")


def _expand(text: str, variables: Mapping[str, _Word]) -> str:
    def value(found: re.Match[str]) -> str:
        known = variables.get(found.group(1) or found.group(3))
        if known is not None:
            return known.text
        return found.group(2) if found.group(2) is not None else found.group()

    return _VARIABLE.sub(value, text)


def _substituted(word: _Word, variables: Mapping[str, _Word]) -> _Word:
    if "$" not in word.raw or word.raw.startswith("'"):
        return word
    only = _VARIABLE.fullmatch(word.text)
    origin = variables.get(only.group(1) or only.group(3)) if only is not None else None
    return _Word(_expand(word.text, variables), word.raw, word.start, word.line, origin)


def _launch(
    words: list[_Word], prefix: Mapping[str, _Word], *, file: str, extra: Mapping[str, str] | None
) -> list[SettingSource]:
    """The sources of a command, none if it starts no training script."""
    first = next((i for i, word in enumerate(words) if word.text.rsplit("/", 1)[-1] in _LAUNCHERS), None)
    if first is None:
        return []
    script = next((i for i in range(first + 1, len(words)) if words[i].text.endswith(".py")), None)
    if script is None:
        script = next((i + 1 for i in range(first + 1, len(words) - 1) if words[i].text in ("-m", "--module")), None)
    if script is None:
        return []
    name = words[script].text
    before = _flags(words[first + 1 : script], file=file, extra=extra)
    after = _flags(words[script + 1 :], file=file, extra=extra)
    launcher = words[first].text.rsplit("/", 1)[-1]
    before += [_setting((key,), word, file=file, extra=extra) for key, word in prefix.items()]
    found = []
    line = words[first].line
    if before or launcher in ("accelerate", "torchrun", "deepspeed"):
        framework = "accelerate" if launcher == "accelerate" else launcher
        named = _references([*before, *after])
        found.append(SettingSource(file, "shell", tuple(before), "launcher", framework, line, name, named))
    if after:
        found.append(
            SettingSource(file, "shell", tuple(after), "trainer", "", line, name, _references([*before, *after]))
        )
    return found


def _flags(words: list[_Word], *, file: str, extra: Mapping[str, str] | None) -> list[Setting]:
    """The settings that the flags of a command give, as `--lr=1e-4`, `--lr 1e-4` or `--fp16`."""
    settings: list[Setting] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if _is_flag(word.text):
            name, equals, value = word.text.lstrip("-").partition("=")
            if equals:
                settings.append(_setting((name,), _after_equals(word, value), file=file, extra=extra))
            elif index < len(words) and not _is_flag(words[index].text) and plain(name) not in _FLAGS_WITHOUT_VALUE:
                settings.append(_setting((name,), words[index], file=file, extra=extra))
                index += 1
            else:
                negative = plain(name).startswith("no_")
                shown = plain(name).removeprefix("no_")
                names = (shown,)
                settings.append(Setting((name,), names, meaning(names, extra), not negative, file, word.line))
        elif "=" in word.text and re.match(r"\+{0,2}[A-Za-z_][\w.]*=", word.text):  # an override of Hydra
            name, _, value = word.text.partition("=")
            path = tuple(name.lstrip("+").split("."))
            settings.append(_setting(path, _after_equals(word, value), file=file, extra=extra))
    return settings


def _after_equals(word: _Word, value: str) -> _Word:
    """The value of `--lr=1e-4` as a word with its own place."""
    at = word.raw.index("=") + 1 if "=" in word.raw else 0
    return _Word(value, word.raw[at:], word.start + at, word.line)


def _is_flag(text: str) -> bool:
    return text.startswith("--") or (text.startswith("-") and text[1:2].isalpha())


def _setting(path: tuple[str, ...], word: _Word, *, file: str, extra: Mapping[str, str] | None) -> Setting:
    place = word.origin or word
    literal = "$" not in place.raw
    value: Any = scalar(word.text) if word.text else UNKNOWN
    span = Span(place.start, place.start + len(place.raw)) if literal and place.raw else None
    return named_setting(path, value, file=file, line=place.line, span=span, extra=extra)


def _references(settings: list[Setting]) -> tuple[str, ...]:
    return tuple(
        str(each.value)
        for each in settings
        if isinstance(each.value, str) and each.value.endswith((".json", ".yaml", ".yml"))
    )
