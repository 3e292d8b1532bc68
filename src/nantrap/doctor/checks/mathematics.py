"""Checks of the mathematics of a forward pass (NT861-NT863, NT866).

A root at zero, torch.where, the deviation of small groups, repeated indices of einsum.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.configuration.setting import UNKNOWN
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.domains import keeps_from_elsewhere, leaves_domain
from nantrap.doctor.source.expressions import (
    additions,
    calls_in,
    dotted,
    has_epsilon,
    is_epsilon,
    is_operation,
    name_of,
    names_in,
    operation,
    peeled,
    receiver_of,
)
from nantrap.doctor.source.flow import flow_of
from nantrap.doctor.source.module import CodePlace, Function, Module

_GRID: Final = re.compile(r"grid|coord|channel|^ind|^idx|arange|freq|mesh|position|linspace")
_CONSTANT: Final = re.compile(r"^(mu|c|delta|huber_c|sigma_data|beta|eps|epsilon|margin|alpha|gamma|const)$")
_ASIDE: Final = frozenset({
    "infer", "inference", "preprocess", "preprocessing", "runtime", "pipelines", "demo", "demos", "metrics",
    "evaluation",
})  # fmt: skip
_UNGUIDED: Final = re.compile(r"sampl|generat|decode|beam|quanti|infer|predict|metric|eval")
_COUNTS: Final = re.compile(r"count|nelem|^n_|num|len|rand|noise|uniform")
_WITHOUT_GRADIENT: Final = re.compile(
    r"^(detach|long|int|bool|item|arg(max|min)|arange|linspace|(as_)?tensor|from_numpy|(zeros|ones|full|randn?)(_like)?|"
    r"randint|one_hot|numel|size|len|bincount|is(nan|finite|inf)|[gl][te]|eq|ne|logical_\w+|any|all|floor|ceil|round|sign)$"
)
_GIVEN: Final = re.compile(r"^(batch|feats|data|sample|example|inputs)$")
"""Names of a dictionary of what a data set gives."""
_KEEPS_AWAY: Final = (
    "where", "clamp", "clamp_min", "maximum", "softplus", "exp", "clip", "masked_fill", "cosh",
)  # fmt: skip
"""Operations whose result is no longer where a logarithm, a root or a division has no value."""
_ONE_PER_SAMPLE: Final = re.compile(
    r"reward|adv|return|loss|score|group|logp|gae|ratio|distance|sims?$|batch", re.IGNORECASE
)
_GROUPED: Final = re.compile(r"grouped|^group$|_group$|^group_(?!norm)|num_generations|group_size")


@source_check("sqrt_at_zero")
def sqrt_at_zero(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The square root of a sum of squares, whose derivative is infinite at zero."""
    found: list[tuple[ast.expr, ast.expr, CodePlace]] = []
    for call, place in module.sites("sqrt", "sqrt_"):
        root = operation(module, call)
        if root is not None and root.operand is not None:
            found.append((call, root.operand, place))
    for power, place in module.powers:
        if not place.silent and module.value(power.right) == 0.5:
            found.append((power, power.left, place))
    for node, operand, place in found:
        if not in_model(module, place.function) or "metric" in module.file.lower():
            continue
        inner = place.function.followed(operand, node.lineno)
        if has_floor(module, inner, place.function) or not _sum_of_squares(module, inner, place.function, 0):
            continue
        yield Sighting.of(
            node,
            "medium",
            "the gradient of sqrt is infinite where the sum of squares is 0",
            "add an epsilon inside the root, or use torch.linalg.vector_norm",
        )


@source_check("where_guards_domain")
def where_guards_domain(module: Module, repository: Repository) -> Iterator[Sighting]:
    """torch.where chooses the good value, but the bad one still gives a NaN gradient.

    Certain where the condition tests all that the argument depends on, and keeps it from what it must not be; and
    where the function is part of a forward pass or a loss, directly or through its callers in other files. Not where
    the result is only a field of what the function gives: no loss is seen that uses it.
    """
    for call, place in module.sites("where"):
        found = operation(module, call)
        if found is None or found.name != "where":
            continue
        if module.resolve(call.func).startswith("torch."):
            if len(call.args) < 3:
                continue
            condition, sides = call.args[0], list(call.args[1:3])
        elif len(call.args) == 2 and isinstance(call.func, ast.Attribute) and not module.resolve(call.func):
            condition, sides = call.args[0], [call.func.value, call.args[1]]
        else:
            continue
        if _UNGUIDED.search(place.function.name.lower()) or _of_an_optimizer(place.function):
            continue
        for side, chosen in zip(sides, (True, False), strict=True):
            risky, doubt = _risky(module, side, place.function, call.lineno, condition, chosen=chosen)
            if risky is not None:
                target = place.statement.targets[0] if isinstance(place.statement, ast.Assign) else None
                if target is not None and _is_only_a_field(place.function, dotted(target), call.lineno):
                    doubt = doubt or "no loss was seen to use the result"
                if not _is_trained(module, place.function, repository):
                    doubt = doubt or "no forward pass or loss was seen to call it"
                yield Sighting(
                    "high",
                    call.lineno,
                    ast.unparse(side)[:80],
                    f"where() hides the value of {ast.unparse(risky)[:50]}, but not its gradient: 0 × Inf = NaN",
                    "make the argument safe with an inner where",
                    doubt=doubt,
                )
                break


@source_check("std_of_one")
def std_of_one(module: Module, repository: Repository) -> Iterator[Sighting]:
    """An unbiased standard deviation over a batch or group that may have one element."""
    for call, place in module.sites("std", "var", "std_mean", "var_mean"):
        found = operation(module, call)
        if (
            found is None
            or found.operand is None
            or (not in_model(module, place.function) and not _normalises(place.function))
        ):
            continue
        if (
            _biased(module, found.arguments, found.keywords)
            or only_logged(call, place)
            or _a_distribution(found.operand)
        ):
            continue
        if _size_tested(call, place):
            continue
        dim = found.keywords.get("dim", found.keywords.get("axis", found.arguments[0] if found.arguments else None))
        name = name_of(found.operand) or ast.unparse(found.operand)
        value = module.value(dim, place.function) if dim is not None else None
        if isinstance(value, list):
            value = value[0] if len(value) == 1 else "several"
        if dim is None:
            risk = "medium" if _ONE_PER_SAMPLE.search(name) else "low"
        elif (value == 0 and not isinstance(value, bool)) or _of_groups(found.operand, place.function, call.lineno):
            risk = "medium"
        else:
            continue
        if risk == "low" and not _divides(place):
            continue
        yield Sighting.of(
            call,
            "medium" if risk == "medium" else "low",
            f"{name}.{found.name} divides by n - 1: it is NaN for one element",
            "use correction=0, and where the result is a divisor add 1e-8 to it: with one element it is 0"
            if _divides(place)
            else "use correction=0",
        )


@source_check("einsum_repeated_index")
def einsum_repeated_index(module: Module, repository: Repository) -> Iterator[Sighting]:
    """An index appears twice in one operand of an einsum: it takes the diagonal."""
    for call, place in module.sites("einsum", "contract"):
        name = module.resolve(call.func)
        if name.split(".")[0] in ("numpy", "np", "jax", "jnp", "tensorflow", "tf"):
            continue
        texts = [call.args[index] for index in (0, -1) if call.args]
        equation = next((value for node in texts if isinstance(value := module.value(node, place.function), str)), None)
        if equation is None:
            continue
        operands = equation.split("->")[0].split(",")
        if len(operands) < 2:
            continue
        words = name.startswith("einops") or any(_in_words(operand) for operand in operands)
        for operand in operands:
            letters = operand.split() if words else [c for c in operand if c.isalpha()]
            twice = next(
                (letter for letter in letters if letters.count(letter) > 1 and letter not in ("...", "1", "_")), None
            )
            if twice is not None:
                yield Sighting(
                    "high",
                    call.lineno,
                    equation,
                    f'"{equation}": the index {twice} appears twice in "{operand.strip()}", which takes the diagonal',
                    "give the rows and the columns two letters",
                )
                break


def _in_words(operand: str) -> bool:
    """Whether an operand names its axes with words, as einops and fancy_einsum do: `batch head dst src`."""
    axes = operand.replace("...", " ").split()
    return len(axes) > 1 and any(len(axis) > 1 for axis in axes)


def in_model(module: Module, function: Function, depth: int = 0) -> bool:
    """Whether a function is part of a forward pass, a loss, or a training step."""
    if module.folders & _ASIDE:
        return False
    at: Function | None = function
    while at is not None:
        name = at.name.lower()
        if (
            name == "forward"
            or "loss" in name
            or name in ("training_step", "__call__", "call", "compute_objective", "criterion")
        ):
            return name not in ("__call__", "call") or at.owner is not None
        if at.owner is not None:
            owner = at.owner.name.lower()
            if "loss" in owner or "criterion" in owner:
                return not name.startswith("__")
            bases = [dotted(base).rsplit(".", 1)[-1] for base in at.owner.bases]
            if any(base == "Module" or base.endswith(("Module", "Layer", "Block", "Loss")) for base in bases):
                return not name.startswith("__") and not any(
                    word in name for word in ("init", "reset", "metric", "eval", "sample")
                )
        at = at.parent
    if isinstance(function.node, ast.Lambda):
        return False
    if depth < 2 and function.name and function.owner is None:  # a helper of a forward pass or a loss
        callers = {id(place.function): place.function for _, place in module.calls.get(function.name, ())}
        if any(each is not function and in_model(module, each, depth + 1) for each in callers.values()):
            return True
    if "backward" in module.calls and any(
        call for call, place in module.calls["backward"] if place.function is function
    ):
        return flow_of(module, function).trains
    return False


def has_floor(module: Module, node: ast.AST, function: Function) -> bool:
    """Whether something inside a root keeps it above zero."""
    return has_epsilon(module, node, function) or any(is_epsilon(module, part, function) for part in additions(node))


def _is_square(module: Module, node: ast.expr, function: Function, depth: int) -> bool:
    """Whether an expression is a square: `x ** 2`, `x * x`, `x.square()`, or a name that was given one."""
    node = peeled(module, node)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            return bool(module.value(node.right) == 2)
        if isinstance(node.op, ast.Mult):
            if ast.dump(node.left) == ast.dump(node.right):
                return True
            return any(_is_square(module, side, function, depth) for side in (node.left, node.right))
        return False
    found = operation(module, node)
    if found is not None:
        if found.name == "square":
            return True
        if found.name in ("pow", "pow_"):
            exponent = found.arguments[0] if found.arguments else found.keywords.get("exponent")
            return exponent is not None and bool(module.value(exponent) == 2)
        return False
    if depth < 2 and dotted(node):
        inner = function.followed(node, node.lineno, 1)
        return inner is not node and _is_square(module, inner, function, depth + 1)
    return False


def _sum_of_squares(module: Module, node: ast.expr, function: Function, depth: int) -> bool:
    """Whether an expression is a sum or mean of squares, which is zero when all of them are."""
    node = peeled(module, node)
    found = operation(module, node)
    if found is not None and found.operand is not None:
        if found.name in ("sum", "mean", "nansum"):
            return _is_square(module, found.operand, function, 0) or _sum_of_squares(
                module, found.operand, function, depth + 1
            )
        if found.name == "mse_loss":
            return True
    if isinstance(node, ast.Call) and "mse" in (dotted(node.func) or "").lower():
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = list(additions(node))
        if any(_GRID.search(name) for name in names_in(node)) or any(_is_setting(p, function) for p in parts):
            return False
        return len(parts) >= 2 and all(_is_square(module, part, function, 0) for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _sum_of_squares(module, node.left, function, depth + 1)
    if depth < 2 and dotted(node):
        inner = function.followed(node, node.lineno, 1)
        return (
            inner is not node
            and not has_floor(module, inner, function)
            and _sum_of_squares(module, inner, function, depth + 1)
        )
    return False


def _is_setting(node: ast.expr, function: Function) -> bool:
    """Whether a square is that of a constant of the model, which keeps the sum above zero: `self.sigma_data ** 2`."""
    base = node.left if isinstance(node, ast.BinOp) else node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        base = node.func.value
    if isinstance(base, ast.BinOp) and isinstance(base.op, ast.Sub) and isinstance(base.left, ast.Constant):
        return True  # t ** 2 + (1 - t) ** 2
    name = dotted(base)
    if name.startswith("self.") or _CONSTANT.match(name.rsplit(".", 1)[-1]):
        return True
    value = function.given(base, node.lineno)
    return value is not None and dotted(value).startswith("self.")


def _of_an_optimizer(function: Function) -> bool:
    return function.owner is not None and any("Optim" in name_of(base) for base in function.owner.bases)


def _is_only_a_field(function: Function, name: str, line: int, depth: int = 0) -> bool:
    """Whether all uses of a name after a line are fields of an object that is made: `Output(mask=mask)`."""
    uses: list[ast.AST] = []
    fields: set[int] = set()
    derived: dict[int, tuple[str, int]] = {}
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == name and node.lineno > line:
            uses.append(node)
        elif isinstance(node, ast.Call) and name_of(node.func)[:1].isupper():
            fields.update(id(keyword.value) for keyword in node.keywords)
        elif isinstance(node, ast.Assign):
            known = dotted(node.targets[0]), node.lineno
            derived.update((id(part), known) for part in ast.walk(node.value))
    return bool(uses) and all(
        id(each) in fields
        or (depth < 2 and id(each) in derived and _is_only_a_field(function, *derived[id(each)], depth + 1))
        for each in uses
    )


def _is_trained(module: Module, function: Function, repository: Repository) -> bool:
    """Whether a function is part of a forward pass or a loss, here or where other files call it.

    A function is taken to be, if its file was read alone.
    """
    if in_model(module, function):
        return True
    others = [each for each in repository.modules if each is not module]
    callers = [(each, place) for each in others for _, place in each.calls.get(function.name, ()) if not place.silent]
    helps = function.owner is None and any(in_model(each, place.function) for each, place in callers)
    return helps or not others


def _risky(
    module: Module, side: ast.expr, function: Function, line: int, condition: ast.expr, *, chosen: bool
) -> tuple[ast.expr | None, str]:
    """The logarithm, root or division inside a branch whose argument nothing protects.

    The second value says why it takes more than the condition to know that the argument leaves its domain in training:
    the argument depends on something else, too, or on given data alone, or the condition keeps it from something else.
    """
    guarded = _tested_names(condition)
    own = dotted(side)
    if own:
        if own.lower() in guarded:
            return None, ""  # the condition tests the result
        side = function.followed(side, line, 1)
    definition = function.given(condition, line)
    if definition is not None:
        guarded |= _tested_names(definition)
    opaque = definition is None and (bool(dotted(condition)) or isinstance(condition, ast.Subscript))
    for each in _outer_expressions(module, side):
        found = operation(module, each) if isinstance(each, ast.Call) else None
        argument: ast.expr | None = None
        if found is not None and found.name in ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "acos", "asin"):
            argument = found.operand
        elif found is not None and found.name in ("div", "true_divide") and found.arguments:
            argument = found.arguments[0]
        elif isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div):
            argument = each.right
        if argument is None or not isinstance(each, ast.expr) or _safe(module, argument, function, line):
            continue
        if not _learns(module, each, function, line):
            continue
        if isinstance(each, ast.BinOp) and "sin" in names_in(each.left):
            continue  # the sinc of a fixed filter
        if (opaque and not own) or guarded & names_in(argument):
            kind = found.name if found is not None else "div"
            test = condition if definition is None else definition
            leaves = leaves_domain(module, function, kind, argument, test, chosen=chosen)
            if leaves is False:
                continue
            others = {name for name in names_in(argument) - guarded if name in _tensor_names(function)}
            if others and not opaque:
                return each, "its argument depends on more than the condition tests"
            if not _learns(module, argument, function, line):
                return each, "its argument was not seen to be learned"
            if keeps_from_elsewhere(module, function, kind, argument, test):
                return each, "the condition tests a limit, and not the value at which it has no derivative"
            return each, ""
    return None, ""


def _tested_names(condition: ast.expr) -> set[str]:
    """The names that a condition tests; in `n < beta` that is n alone."""
    if isinstance(condition, ast.Compare) and names_in(condition.left):
        return names_in(condition.left)
    return names_in(condition)


def _tensor_names(function: Function) -> set[str]:
    """The arguments and the assigned names of a function, in lower case."""
    return {name.lower() for name in (*function.parameters, *function.assigned) if "." not in name}


def _outer_expressions(module: Module, top: ast.expr) -> Iterator[ast.AST]:
    """Every expression of a branch, except those inside an inner where."""
    stack: list[ast.AST] = [top]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and is_operation(module, node, "where") is not None:
            continue
        yield node
        stack.extend(ast.iter_child_nodes(node))


def _safe(module: Module, node: ast.expr, function: Function, line: int) -> bool:
    """Whether an argument cannot be zero or negative: constants, sizes, and what is guarded."""
    value = module.value(node, function)
    if isinstance(value, (int, float)):
        return True
    if has_epsilon(module, node, function):
        return True
    while isinstance(node, ast.Subscript):
        node = node.value
    if any(_COUNTS.search(name) for name in names_in(node)):
        return True  # counts and noise have no gradient
    text = ast.unparse(node)
    if any(
        word in text
        for word in (".shape", ".size(", "len(", "math.", "np.", "numel", ".exp()", "torch.exp(", "_dim", "num_")
    ):
        return True
    inner = function.followed(node, line)
    if inner is not node:
        if any(_COUNTS.search(name) for name in names_in(inner) if name.startswith(("rand", "uniform", "count"))):
            return True
        made = operation(module, inner)
        if made is not None and made.name in _KEEPS_AWAY:
            return True
        return _safe(module, inner, function, line) if not dotted(inner) else False
    return is_operation(module, node, *_KEEPS_AWAY) is not None


def _learns(module: Module, node: ast.AST, function: Function, line: int, depth: int = 0) -> bool:
    """Whether a gradient may flow through an expression: not through comparisons, whole numbers and given data."""
    if isinstance(node, (ast.Constant, ast.Compare)) or module.value(node, function) is not UNKNOWN:
        return False
    if isinstance(node, ast.Call):
        found = operation(module, node)
        if found is None or _WITHOUT_GRADIENT.match(name_of(node.func)):
            return False
        return any(_learns(module, each, function, line, depth) for each in (found.operand, *found.arguments) if each)
    name = dotted(node)
    if name in module.buffers:
        return False
    if name:
        value = function.latest(name, line) if depth < 4 else None
        if value is None:
            return _given_learned(module, name, function, depth)
        return _learns(module, value, function, getattr(value, "lineno", line), depth + 1)
    if isinstance(node, ast.Subscript):
        of_batch = isinstance(node.slice, ast.Constant) and _GIVEN.match(name_of(node.value))
        return not of_batch and _learns(module, node.value, function, line, depth)
    return any(
        _learns(module, each, function, line, depth)
        for each in ast.iter_child_nodes(node)
        if isinstance(each, ast.expr)
    )


def _given_learned(module: Module, name: str, function: Function, depth: int) -> bool:
    """Whether a gradient may reach a name of a function: not if the file calls the function with given data alone."""
    if depth >= 4 or isinstance(function.node, (ast.Module, ast.Lambda)) or function.owner is not None:
        return True
    order = [each.arg for each in (*function.node.args.posonlyargs, *function.node.args.args)]
    if name not in order:
        return True
    at = order.index(name)
    given = [
        (argument, place)
        for call, place in module.calls.get(function.name, ())
        for argument in (call.args[at : at + 1] or [each.value for each in call.keywords if each.arg == name])
    ]
    return not given or any(
        not place.silent and _learns(module, argument, place.function, argument.lineno, depth + 1)
        for argument, place in given
    )


def _biased(module: Module, arguments: list[ast.expr], keywords: dict[str, ast.expr]) -> bool:
    """Whether a variance divides by n, so that one value gives 0 and not NaN."""
    unbiased, correction = keywords.get("unbiased"), keywords.get("correction")
    if unbiased is not None:
        return module.value(unbiased) is not True
    if correction is not None:
        return bool(module.value(correction) != 1)
    if any(isinstance(each, ast.Constant) and each.value is False for each in arguments[:2]):
        return True
    return "ddof" in keywords


def only_logged(call: ast.Call, place: CodePlace) -> bool:
    """`x.std().item()` and what is in a print or a log."""
    for each in ast.walk(place.statement):
        if receiver_of(each, "item", "detach", "cpu", "tolist") is call:
            return True
        if isinstance(each, ast.FormattedValue) and call in ast.walk(each):
            return True
    for log in calls_in(place.statement, "print", "log", "info", "debug", "add_scalar", "log_dict"):
        given = (*log.args, *(keyword.value for keyword in log.keywords))
        if any(call in ast.walk(each) for each in given):
            return True
    return False


def _a_distribution(node: ast.expr) -> bool:
    return name_of(node).lower() in ("np", "numpy", "statistics", "dist", "posterior", "df")


def _normalises(function: Function) -> bool:
    """Functions that standardise rewards or advantages belong to the loss though their name does not say so."""
    name = function.name.lower()
    return any(
        word in name for word in ("advantage", "reward", "normalize", "normalise", "standardi", "whiten", "train")
    )


def _of_groups(node: ast.expr, function: Function, line: int) -> bool:
    """Whether a tensor holds groups of samples: rewards of several answers to one question."""
    value = function.given(node, line)
    names = names_in(node) | (names_in(value) if value is not None else set())
    return any(_GROUPED.search(name) for name in names)


def _size_tested(call: ast.Call, place: CodePlace) -> bool:
    """`x.std() if x.numel() > 1 else 0`."""
    for each in ast.walk(place.statement):
        if isinstance(each, ast.IfExp) and any(inner is call for inner in ast.walk(each)):
            text = ast.unparse(each.test)
            return any(word in text for word in ("numel", "len(", "shape", "size"))
    return False


def _divides(place: CodePlace) -> bool:
    return any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div) for each in ast.walk(place.statement))
