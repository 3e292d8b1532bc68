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
    Operation,
    additions,
    calls_in,
    dotted,
    has_epsilon,
    is_epsilon,
    is_operation,
    name_of,
    names_in,
    operation,
    operations,
    peeled,
    receiver_of,
    shown,
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
_SIZES: Final = (".shape", ".size(", "len(", "math.", "np.", "numel", ".exp()", "torch.exp(", "_dim", "num_")
_DOMAINS: Final = frozenset(
    ["log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "acos", "asin", "div", "true_divide"]
)
_ONE_PER_SAMPLE: Final = re.compile(
    r"reward|adv|return|loss|score|group|logp|gae|ratio|distance|sims?$|batch", re.IGNORECASE
)
_GROUPED: Final = re.compile(r"grouped|^group$|_group$|^group_(?!norm)|num_generations|group_size")


@source_check("sqrt_at_zero", "medium", "add an epsilon inside the root, or use torch.linalg.vector_norm")
def sqrt_at_zero(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The square root of a sum of squares, whose derivative is infinite at zero."""
    for root, place in operations(module, "sqrt", "sqrt_", "pow"):
        function = place.function
        if root.name == "pow" and function.value(root.argument(0, "exponent")) != 0.5:
            continue
        if "metric" in module.file.lower() or not in_model(function):
            continue
        inner = function.followed(root.operand, root.node.lineno)
        if not _has_floor(function, inner) and _sum_of_squares(function, inner):
            yield Sighting.of(root.node, "the gradient of sqrt is infinite where the sum of squares is 0")


@source_check("where_guards_domain", "high", "make the argument safe with an inner where")
def where_guards_domain(module: Module, repository: Repository) -> Iterator[Sighting]:
    """torch.where chooses the good value, but the bad one still gives a NaN gradient.

    Certain where the condition tests all that the argument depends on, and keeps it from what it must not be; and
    where the function is part of a forward pass or a loss, directly or through its callers in other files. Not where
    the result is only a field of what the function gives: no loss is seen that uses it.
    """
    for found, place in operations(module, "where"):
        function, line = place.function, found.node.lineno
        assert isinstance(found.node, ast.Call)
        name = module.resolve(found.node.func)
        parts = [found.operand, *found.arguments] if name.startswith("torch.") else []
        if not name and len(found.arguments) == 2:  # torch.log(x).where(condition, y)
            parts = [found.arguments[0], found.operand, found.arguments[1]]
        if len(parts) < 3 or _UNGUIDED.search(function.name.lower()) or is_of_an_optimizer(function):
            continue
        for side, chosen in zip(parts[1:3], (True, False), strict=True):
            risky, doubt = _risky(side, function, line, parts[0], chosen=chosen)
            if risky is None:
                continue
            target = place.statement.targets[0] if isinstance(place.statement, ast.Assign) else None
            if target is not None and _is_only_a_field(function, dotted(target), line):
                doubt = doubt or "no loss was seen to use the result"
            if not _is_trained(function, repository):
                doubt = doubt or "no forward pass or loss was seen to call it"
            words = f"where() hides the value of {shown(risky, 50)}, but not its gradient: 0 × Inf = NaN"
            yield Sighting(line, shown(side, 80), words, doubt=doubt)
            break


@source_check("std_of_one", "medium", "use correction=0")
def std_of_one(module: Module, repository: Repository) -> Iterator[Sighting]:
    """An unbiased standard deviation over a batch or group that may have one element."""
    for found, place in operations(module, "std", "var", "std_mean", "var_mean"):
        function, call, operand = place.function, found.node, found.operand
        if not in_model(function) and not _normalises(function):
            continue
        if _biased(function, found) or only_logged(call, place) or _size_tested(call, place):
            continue
        if name_of(operand).lower() in ("np", "numpy", "statistics", "dist", "posterior", "df"):
            continue
        dim = found.argument(0, "dim", "axis")
        name = name_of(operand) or ast.unparse(operand)
        value = function.value(dim)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        over_batch = type(value) is int and value == 0
        grouped = dim is not None and _of_groups(operand, function, call.lineno)
        certain = over_batch or grouped or (dim is None and _ONE_PER_SAMPLE.search(name))
        divides = any(isinstance(each, ast.Div) for each in ast.walk(place.statement))
        if certain or (dim is None and divides):
            words = f"{name}.{found.name} divides by n - 1: it is NaN for one element"
            fix = "use correction=0, and where the result is a divisor add 1e-8 to it: with one element it is 0"
            yield Sighting.of(call, words, risk="medium" if certain else "low", fix=fix if divides else "")


@source_check("einsum_repeated_index", "high", "give the rows and the columns two letters")
def einsum_repeated_index(module: Module, repository: Repository) -> Iterator[Sighting]:
    """An index appears twice in one operand of an einsum: it takes the diagonal."""
    for call, place in module.sites("einsum", "contract"):
        name = module.resolve(call.func)
        values = [place.function.value(call.args[index]) for index in (0, -1) if call.args]
        equation = next((value for value in values if isinstance(value, str)), "")
        operands = equation.split("->")[0].split(",")
        if len(operands) < 2 or name.split(".")[0] in ("numpy", "np", "jax", "jnp", "tensorflow", "tf"):
            continue
        words = name.startswith("einops") or any(_in_words(operand) for operand in operands)
        for operand in operands:
            letters = operand.split() if words else [c for c in operand if c.isalpha()]
            twice = next((c for c in letters if letters.count(c) > 1 and c not in ("...", "1", "_")), None)
            if twice is not None:
                shown = f'"{equation}": the index {twice} appears twice in "{operand.strip()}"'
                yield Sighting(call.lineno, equation, f"{shown}, which takes the diagonal")
                break


def _in_words(operand: str) -> bool:
    """Whether an operand names its axes with words, as einops and fancy_einsum do: `batch head dst src`."""
    axes = operand.replace("...", " ").split()
    return len(axes) > 1 and any(len(axis) > 1 for axis in axes)


def in_model(function: Function, depth: int = 0) -> bool:
    """Whether a function is part of a forward pass, a loss, or a training step."""
    module = function.module
    if module.folders & _ASIDE:
        return False
    at: Function | None = function
    while at is not None:
        name = at.name.lower()
        if "loss" in name or name in ("forward", "training_step", "compute_objective", "criterion"):
            return True
        if name in ("__call__", "call"):
            return at.owner is not None
        if at.owner is not None:
            owner = at.owner.name.lower()
            if "loss" in owner or "criterion" in owner:
                return not name.startswith("__")
            if any(name_of(base).endswith(("Module", "Layer", "Block", "Loss")) for base in at.owner.bases):
                return not re.search(r"^__|init|reset|metric|eval|sample", name)
        at = at.parent
    if isinstance(function.node, ast.Lambda):
        return False
    if depth < 2 and function.name and function.owner is None:  # a helper of a forward pass or a loss
        callers = {id(place.function): place.function for _, place in module.calls.get(function.name, ())}
        if any(each is not function and in_model(each, depth + 1) for each in callers.values()):
            return True
    trains = any(place.function is function for _, place in module.calls.get("backward", ()))
    return trains and flow_of(module, function).trains


def _has_floor(function: Function, node: ast.AST) -> bool:
    """Whether something inside a root keeps it above zero."""
    return has_epsilon(function, node) or any(is_epsilon(function, part) for part in additions(node))


def _is_square(function: Function, node: ast.expr, depth: int = 0) -> bool:
    """Whether an expression is a square: `x ** 2`, `x * x`, `x.square()`, or a name that was given one."""
    node = peeled(function, node)
    found = operation(function, node)
    if found is not None and found.name in ("pow", "pow_"):
        return bool(function.value(found.argument(0, "exponent")) == 2)
    if found is not None and found.name == "mul" and found.arguments:
        both = found.operand, found.arguments[0]
        return ast.dump(both[0]) == ast.dump(both[1]) or any(_is_square(function, side, depth) for side in both)
    if found is not None or not dotted(node) or depth >= 2:
        return found is not None and found.name == "square"
    inner = function.followed(node, node.lineno, 1)
    return inner is not node and _is_square(function, inner, depth + 1)


def _sum_of_squares(function: Function, node: ast.expr, depth: int = 0) -> bool:
    """Whether an expression is a sum or mean of squares, which is zero when all of them are."""
    node = peeled(function, node)
    found = operation(function, node)
    if found is not None and found.name in ("sum", "mean", "nansum"):
        return _is_square(function, found.operand) or _sum_of_squares(function, found.operand, depth + 1)
    if isinstance(node, ast.Call) and "mse" in name_of(node.func).lower():
        return True
    if found is not None and found.name == "add":
        parts = list(additions(node)) if isinstance(node, ast.BinOp) else [found.operand, *found.arguments[:1]]
        if any(_GRID.search(name) for name in names_in(node)) or any(_is_setting(each, function) for each in parts):
            return False
        return len(parts) >= 2 and all(_is_square(function, part) for part in parts)
    if found is not None and found.name == "div":
        return _sum_of_squares(function, found.operand, depth + 1)
    if depth < 2 and dotted(node):
        inner = function.followed(node, node.lineno, 1)
        return inner is not node and not _has_floor(function, inner) and _sum_of_squares(function, inner, depth + 1)
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


def is_of_an_optimizer(function: Function) -> bool:
    """Whether a function is a method of an optimizer, which has its own epsilons, below squares of gradients."""
    return function.owner is not None and any("optim" in dotted(base).lower() for base in function.owner.bases)


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


def _is_trained(function: Function, repository: Repository) -> bool:
    """Whether a function is part of a forward pass or a loss, here or where other files call it.

    A function is taken to be, if its file was read alone.
    """
    others = [each for each in repository.modules if each is not function.module]
    callers = [place.function for each in others for _, place in each.sites(function.name)]
    return not others or in_model(function) or (function.owner is None and any(map(in_model, callers)))


def _risky(
    side: ast.expr, function: Function, line: int, condition: ast.expr, *, chosen: bool
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
    test = condition if definition is None else definition
    guarded |= _tested_names(test)
    opaque = definition is None and (bool(dotted(condition)) or isinstance(condition, ast.Subscript))
    for found in _with_a_domain(function, side):
        argument = found.arguments[0] if found.name in ("div", "true_divide") else found.operand
        if _safe(argument, function, line) or not _learns(found.node, function, line):
            continue
        if found.name == "div" and "sin" in names_in(found.operand):
            continue  # the sinc of a fixed filter
        if not ((opaque and not own) or guarded & names_in(argument)):
            continue
        if leaves_domain(function, found.name, argument, test, chosen=chosen) is False:
            continue
        others = {name for name in names_in(argument) - guarded if name in _tensor_names(function)}
        if others and not opaque:
            return found.node, "its argument depends on more than the condition tests"
        if not _learns(argument, function, line):
            return found.node, "its argument was not seen to be learned"
        if keeps_from_elsewhere(function, found.name, argument, test):
            return found.node, "the condition tests a limit, and not the value at which it has no derivative"
        return found.node, ""
    return None, ""


def _with_a_domain(function: Function, top: ast.expr) -> Iterator[Operation]:
    """The logarithms, roots and divisions of a branch, except those inside an inner where."""
    stack: list[ast.AST] = [top]
    while stack:
        node = stack.pop()
        found = operation(function, node)
        if found is not None and found.name == "where":
            continue
        if found is not None and found.name in _DOMAINS and (found.arguments or not found.name.endswith("div")):
            yield found
        stack.extend(ast.iter_child_nodes(node))


def _tested_names(condition: ast.expr) -> set[str]:
    """The names that a condition tests; in `n < beta` that is n alone."""
    if isinstance(condition, ast.Compare) and names_in(condition.left):
        return names_in(condition.left)
    return names_in(condition)


def _tensor_names(function: Function) -> set[str]:
    """The arguments and the assigned names of a function, in lower case."""
    return {name.lower() for name in (*function.parameters, *function.assigned) if "." not in name}


def _safe(node: ast.expr, function: Function, line: int) -> bool:
    """Whether an argument cannot be zero or negative: constants, sizes, and what is guarded."""
    if isinstance(function.value(node), (int, float)) or has_epsilon(function, node):
        return True
    while isinstance(node, ast.Subscript):
        node = node.value
    if any(_COUNTS.search(name) for name in names_in(node)):
        return True  # counts and noise have no gradient
    text = ast.unparse(node)
    if any(word in text for word in _SIZES):
        return True
    inner = function.followed(node, line)
    if inner is node:
        return is_operation(function, node, *_KEEPS_AWAY) is not None
    if any(name.startswith(("rand", "uniform", "count")) for name in names_in(inner)):
        return True
    return is_operation(function, inner, *_KEEPS_AWAY) is not None or (
        not dotted(inner) and _safe(inner, function, line)
    )


def _learns(node: ast.AST, function: Function, line: int, depth: int = 0) -> bool:
    """Whether a gradient may flow through an expression: not through comparisons, whole numbers and given data."""
    if isinstance(node, (ast.Constant, ast.Compare)) or function.value(node) is not UNKNOWN:
        return False
    if isinstance(node, ast.Call):
        found = operation(function, node)
        if found is None or _WITHOUT_GRADIENT.match(name_of(node.func)):
            return False
        return any(_learns(each, function, line, depth) for each in (found.operand, *found.arguments))
    name = dotted(node)
    if name:
        value = function.latest(name, line) if depth < 4 else None
        if name in function.module.buffers or _is_a_running_sum(name, function):
            return False
        if value is None:
            return _given_learned(name, function, depth)
        return _learns(value, function, getattr(value, "lineno", line), depth + 1)
    if isinstance(node, ast.Subscript):
        of_batch = isinstance(node.slice, ast.Constant) and _GIVEN.match(name_of(node.value))
        return not of_batch and _learns(node.value, function, line, depth)
    inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    return any(_learns(each, function, line, depth) for each in inner)


def _is_a_running_sum(name: str, function: Function) -> bool:
    """Whether an attribute adds up over the steps: a gradient through it would fail at the second backward pass."""
    values = [value for _, value in function.module.attributes.get(name, ())]
    sums = (value for value in values if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add))
    return len(values) > 1 and any(name in (dotted(each.left), dotted(each.right)) for each in sums)


def _given_learned(name: str, function: Function, depth: int) -> bool:
    """Whether a gradient may reach a name of a function: not if the file calls the function with given data alone."""
    if depth >= 4 or isinstance(function.node, (ast.Module, ast.Lambda)) or function.owner is not None:
        return True
    order = [each.arg for each in (*function.node.args.posonlyargs, *function.node.args.args)]
    if name not in order:
        return True
    at = order.index(name)
    given = [
        (argument, place)
        for call, place in function.module.calls.get(function.name, ())
        for argument in (call.args[at : at + 1] or [each.value for each in call.keywords if each.arg == name])
    ]
    return not given or any(
        not place.silent and _learns(argument, place.function, argument.lineno, depth + 1) for argument, place in given
    )


def _biased(function: Function, found: Operation) -> bool:
    """Whether a variance divides by n, so that one value gives 0 and not NaN."""
    unbiased, correction = found.keywords.get("unbiased"), found.keywords.get("correction")
    if unbiased is not None:
        return function.value(unbiased) is not True
    if correction is not None:
        return bool(function.value(correction) != 1)
    return "ddof" in found.keywords or any(function.value(each) is False for each in found.arguments[:2])


def only_logged(call: ast.expr, place: CodePlace) -> bool:
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


def _normalises(function: Function) -> bool:
    """Functions that standardise rewards or advantages belong to the loss though their name does not say so."""
    return bool(re.search("advantage|reward|normali[sz]e|standardi|whiten|train", function.name.lower()))


def _of_groups(node: ast.expr, function: Function, line: int) -> bool:
    """Whether a tensor holds groups of samples: rewards of several answers to one question."""
    value = function.given(node, line)
    names = names_in(node) | (names_in(value) if value is not None else set())
    return any(_GROUPED.search(name) for name in names)


def _size_tested(call: ast.expr, place: CodePlace) -> bool:
    """`x.std() if x.numel() > 1 else 0`."""
    tests = [e.test for e in ast.walk(place.statement) if isinstance(e, ast.IfExp) and call in ast.walk(e)]
    return any(word in ast.unparse(test) for test in tests for word in ("numel", "len(", "shape", "size"))
