"""Settings in Python files, by `ast` and never by running them.

It reads constants at the top, classes of constants, dicts, argparse defaults, the calls that take training settings
(`TrainingArguments`, `Trainer`, `Accelerator`, `...Config`) and the calls that make optimizers and schedules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from nantrap.doctor.configuration.names import named_setting, plain
from nantrap.doctor.configuration.setting import (
    UNKNOWN,
    Setting,
    SettingSource,
    SourceKind,
    SourceRole,
    Span,
    quoted,
    scalar,
)
from nantrap.doctor.source.expressions import defaults_of, dotted, evaluate, keyword_of, name_of

if TYPE_CHECKING:
    from nantrap.doctor.source.module import CodePlace, Function, Module

_HOLDERS: Final = (
    "args", "opt", "opts", "options", "flags", "FLAGS", "hparams", "cfg", "config", "self.args", "parsed", "hps",
)  # fmt: skip
_CLASSES: Final = re.compile(r"config|args|arguments|hparams|params|settings|cfg|options|hyper", re.IGNORECASE)
_CALLS: Final = re.compile(
    r"(TrainingArguments|Trainer|Accelerator|Fabric|Config|Arguments|TrainArgs|ModelCheckpoint)$"
)
_OTHER_CALLS: Final = re.compile(
    r"Generation|Sampl|Inference|Infer|Eval|Quant|BitsAndBytes|VLLM|Lora|Peft|Tokeniz|Processor|Vision|Text",
    re.IGNORECASE,
)
_HF_CALLS: Final = re.compile(
    r"TrainingArguments$|^(SFT|DPO|GRPO|ORPO|KTO|CPO|Reward|PPO|RLOO|GKD|BCO|XPO|NashMD|OnlineDPO|PRM|IterativeSFT)Config$"
)
OPTIMIZERS: Final = frozenset([
    "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "LBFGS",
    "LAMB", "Lamb", "LARS", "Lion", "Muon", "Prodigy", "AdamP", "FusedAdam", "FusedLAMB", "Adam8bit", "AdamW8bit",
    "PagedAdamW", "PagedAdamW8bit", "PagedAdamW32bit", "DeepSpeedCPUAdam", "CPUAdam", "Adan", "DAdaptAdam",
    "SparseAdam", "Sophia", "AdaBelief", "AdamWScheduleFree", "Shampoo", "SOAP", "ASGD", "Rprop",
])  # fmt: skip
_MAPPINGS: Final = frozenset({"dict", "ConfigDict", "EasyDict", "edict", "Namespace", "SimpleNamespace"})
_SCHEDULES: Final = re.compile(r"(LR|Scheduler|LRSchedule)$|_schedule(_with_\w+)?$|^get_scheduler$|Warmup\w*$")
_SCHEDULE_WORDS: Final = {
    "eta_min", "min_lr", "max_lr", "pct_start", "num_warmup_steps", "num_training_steps", "total_steps",
    "warmup_steps", "lr_min", "warmup_iters", "max_steps", "warmup_t",
}  # fmt: skip


class PythonSettings:
    """The settings of one Python file. `defaults` are argparse's by name, `constants` the names at the top."""

    def __init__(self, module: Module, *, extra: Mapping[str, str] | None = None) -> None:
        self.file = module.file
        self.extra = extra
        self._text = module.text
        self._starts: list[int] | None = None
        self.constants: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.sources: list[SettingSource] = []
        self._inner_dicts: set[int] = set()
        self._constants(module.tree)
        self._collect(module)

    def known(self, function: Function | None = None) -> dict[str, Any]:
        """Values of names inside a function: constants, argparse defaults, its own defaults and assignments."""
        values = dict(self.constants)
        for name, value in self.defaults.items():
            for holder in _HOLDERS:
                values.setdefault(f"{holder}.{name}", value)
        if function is not None and isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            values.update(_own_values(function.node.args, function.assigned, values))
        return values

    def _constants(self, tree: ast.Module) -> None:
        """Add the constants at the top of a module as a source, if one of them is a known setting."""
        settings: list[Setting] = []
        for statement in _top_statements(tree.body):
            name, value = _assignment(statement)
            if name is None or value is None:
                continue
            self._note(name, value, self.constants)
            settings += self._settings((name,), value, self.constants)
        if any(setting.key for setting in settings):
            self._add("constants", settings, line=1)

    def _note(self, name: str, value: ast.expr, values: dict[str, Any]) -> None:
        found = evaluate(value, values)
        if found is UNKNOWN:
            values.pop(name, None)
        else:
            values[name] = found

    def _collect(self, module: Module) -> None:
        """Argparse first, because calls refer to it."""
        calls: list[tuple[ast.Call, CodePlace]] = []
        arguments: list[Setting] = []
        for node in module.classes:
            self._class(node)
        for mapping in module.dicts:
            if id(mapping) not in self._inner_dicts:
                self._dict(mapping)
        sites = [site for found in module.calls.values() for site in found]
        for call, place in sorted(sites, key=lambda site: site[0].lineno):
            leaf = name_of(call.func)
            if leaf in ("add_argument", "option") or leaf.startswith("DEFINE_"):
                arguments += self._argument(call, leaf)
            elif leaf in OPTIMIZERS or _CALLS.search(leaf) or _SCHEDULES.search(leaf):
                calls.append((call, place))
        if any(setting.key for setting in arguments):
            self._add("argparse", arguments, line=arguments[0].line)
        self._calls(calls)

    def _argument(self, call: ast.Call, leaf: str) -> list[Setting]:
        """The setting that `add_argument` or a flag declares, with its default."""
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        flags = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        if not flags:
            return []
        name = next((flag for flag in flags if flag.startswith("--")), flags[0]).lstrip("-")
        dest = keywords.get("dest")
        if isinstance(dest, ast.Constant) and isinstance(dest.value, str):
            name = dest.value
        node: ast.expr | None = keywords.get("default")
        if leaf.startswith("DEFINE_") and len(call.args) > 1:
            node = call.args[1]
        action = keywords.get("action")
        value: Any
        if node is not None:
            value = evaluate(node, self.constants)
            if isinstance(value, str):
                value = scalar(value) if value else ""
        elif isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
            value = action.value == "store_false"
        else:
            return []
        self.defaults[plain(name)] = value
        return [self._setting((name,), value, node or call)]

    def _class(self, node: ast.ClassDef) -> None:
        """Add the attributes of a configuration class as a source, if one of them is a known setting."""
        if not _CLASSES.search(node.name) or _OTHER_CALLS.search(node.name):
            return
        settings: list[Setting] = []
        values = dict(self.constants)
        for statement in node.body:
            name, value = _assignment(statement)
            if name is not None and value is not None:
                self._note(name, value, values)
                settings += self._settings((name,), value, values)
        if any(setting.key for setting in settings):
            self._add("constants", settings, line=node.lineno)

    def _dict(self, node: ast.Dict) -> None:
        named = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        if not named:
            return
        settings = self._settings((), node, self.constants)
        if len({setting.key for setting in settings if setting.key}) >= 2:
            self._add("constants", settings, line=node.lineno)

    def _calls(self, calls: list[tuple[ast.Call, CodePlace]]) -> None:
        """Add the settings that calls of optimizers, schedules and frameworks are given, one source for a function."""
        by_function: dict[int, list[Setting]] = {}
        known: dict[int, dict[str, Any]] = {}
        for call, place in calls:
            leaf = name_of(call.func)
            function = place.function
            if id(function) not in known:
                known[id(function)] = self.known(function)
            values = known[id(function)]
            if leaf in OPTIMIZERS:
                target = _target(place.statement) if getattr(place.statement, "value", None) is call else leaf
                found = self._optimizer(call, leaf, target, values)
                by_function.setdefault(id(function), []).extend(found)
            elif _SCHEDULES.search(leaf):
                by_function.setdefault(id(function), []).extend(self._schedule(call, values))
            elif not _OTHER_CALLS.search(leaf.removesuffix("Trainer").removesuffix("TrainingArguments")):
                self._framework_call(call, leaf, values)
        for settings in by_function.values():
            if settings:
                self._add("optimizer", settings, line=settings[0].line)

    def _optimizer(self, call: ast.Call, leaf: str, target: str, values: Mapping[str, Any]) -> list[Setting]:
        """The settings that an optimizer is made with: its name, learning rate, epsilon and betas."""
        section = target or "optimizer"
        if call.args and any(isinstance(each, ast.List) for each in ast.walk(call.args[0])):
            given = ast.unparse(call.args[0])
            if "param" not in given and "group" not in given:
                return []  # an image, a latent or one table is optimized, not a network
        found = [self._setting((section, "optimizer"), leaf, call, key="optimizer", literal=False)]
        arguments: dict[str | None, ast.expr] = {keyword.arg: keyword.value for keyword in call.keywords}
        if len(call.args) > 1:
            arguments.setdefault("lr", call.args[1])
        for name, key in (("lr", "lr"), ("eps", "eps"), ("betas", "betas")):
            if name in arguments:
                value = evaluate(arguments[name], values)
                found.append(self._setting((section, name), value, arguments[name], key=key))
        return found

    def _schedule(self, call: ast.Call, values: Mapping[str, Any]) -> list[Setting]:
        """The settings that a schedule is made with, in the section of its optimizer."""
        first = call.args[0] if call.args else keyword_of(call, "optimizer")
        section = dotted(first).rsplit(".", 1)[-1] if first is not None else "optimizer"
        if name_of(call.func) == "CosineAnnealingLR" and len(call.args) > 2:
            return [self._setting((section or "optimizer", "eta_min"), evaluate(call.args[2], values), call.args[2])]
        return [
            self._setting((section or "optimizer", keyword.arg), evaluate(keyword.value, values), keyword.value)
            for keyword in call.keywords
            if keyword.arg in _SCHEDULE_WORDS and keyword.arg
        ]

    def _framework_call(self, call: ast.Call, leaf: str, values: Mapping[str, Any]) -> None:
        """Add the arguments of a trainer or its settings as a source, with the files that they name."""
        settings: list[Setting] = []
        references: list[str] = []
        for keyword in call.keywords:
            if keyword.arg is None:
                continue
            settings += self._settings((keyword.arg,), keyword.value, values)
            if isinstance(keyword.value, ast.Constant) and str(keyword.value.value).endswith((".json", ".yaml")):
                references.append(str(keyword.value.value))
        if not settings:
            return
        framework = "hf" if _HF_CALLS.search(leaf) else leaf.lower()
        if leaf in ("Trainer", "Fabric", "L.Trainer"):
            framework = "lightning"
        role: SourceRole = "code" if leaf == "Accelerator" else "trainer"
        self.sources.append(
            SettingSource(self.file, "call", tuple(settings), role, framework, call.lineno, "", tuple(references))
        )

    def _settings(self, path: tuple[str, ...], node: ast.expr, values: Mapping[str, Any]) -> list[Setting]:
        """A value, or the values inside a dict, with their places."""
        pairs: list[tuple[str, ast.expr]] | None = None
        if isinstance(node, ast.Dict):
            self._inner_dicts.add(id(node))
            pairs = [
                (str(key.value), value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
        elif isinstance(node, ast.Call) and dotted(node.func) in _MAPPINGS:
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg is not None]
            if not pairs and node.args and isinstance(node.args[0], ast.Dict):
                return self._settings(path, node.args[0], values)
        if pairs is not None:
            if len(path) > 12:
                return []
            found = []
            for name, value in pairs:
                found += self._settings((*path, name), value, values)
            # mmcv writes `fp16 = dict(loss_scale=512.)`: the section itself is the switch
            switched = {name for name, _ in pairs} & {"enabled", "enable"}
            if path and plain(path[-1]) == "fp16" and pairs and not switched:
                found.append(self._setting(path, True, node, literal=False))
            return found
        if not path:
            return []
        found_value = evaluate(node, values)
        return [self._setting(path, quoted(found_value) if isinstance(found_value, str) else found_value, node)]

    def _setting(
        self, path: tuple[str, ...], value: Any, node: ast.expr, *, key: str | None = None, literal: bool = True
    ) -> Setting:
        written = literal and isinstance(node, (ast.Constant, ast.UnaryOp, ast.BinOp))
        span = self._span(node) if written else None
        made = named_setting(path, value, file=self.file, line=node.lineno, span=span, extra=self.extra)
        return made if key is None else replace(made, key=key)

    def _span(self, node: ast.expr) -> Span:
        if self._starts is None:
            self._starts = [0]
            for line in self._text.splitlines(keepends=True):
                self._starts.append(self._starts[-1] + len(line))
        return Span(
            self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno or 1, node.end_col_offset or 0)
        )

    def _offset(self, line: int, column: int) -> int:
        """Columns of `ast` count bytes, offsets count characters."""
        assert self._starts is not None
        start = self._starts[line - 1]
        if self._text.isascii():
            return start + column
        end = self._starts[line] if line < len(self._starts) else len(self._text)
        return start + len(self._text[start:end].encode()[:column].decode(errors="ignore"))

    def _add(self, kind: SourceKind, settings: list[Setting], *, line: int) -> None:
        self.sources.append(SettingSource(self.file, kind, tuple(settings), line=line))


def _target(statement: ast.stmt) -> str:
    """The name that a statement assigns to."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return dotted(statement.targets[0]).rsplit(".", 1)[-1]
    return ""


def _top_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If):
            test = dotted(statement.test.left) if isinstance(statement.test, ast.Compare) else ""
            if test == "__name__":
                yield from _top_statements(statement.body)
        else:
            yield statement


def _assignment(statement: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """Name and value of an assignment to one name or attribute; `None` twice for any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        name = target.id if isinstance(target, ast.Name) else None
        if isinstance(target, ast.Attribute):
            name = target.attr  # cfg.lr = 1e-4, as in configuration files of ml_collections and yacs
        return name, statement.value
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id, statement.value
    return None, None


def _own_values(
    arguments: ast.arguments, assigned: Mapping[str, Sequence[tuple[int, ast.expr]]], known: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known inside a function: defaults of its arguments, and names that are always assigned the same value."""
    values: dict[str, Any] = dict(known)
    for name in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        values[name.arg] = UNKNOWN
    for argument, default in defaults_of(arguments):
        values[argument] = evaluate(default, known)
    for local, steps in assigned.items():
        if "." not in local:
            found = [evaluate(value, values) for _, value in steps]
            values[local] = found[0] if all(each == found[0] for each in found) else UNKNOWN
    return values
