"""Leaves the bad part of a step out: a micro-batch, or a term of its loss.

*Micro-batches.* Before the forward pass of the next one the gradients of the last one are checked alone: good ones are
kept aside, bad ones are dropped together with what their forward pass did to the buffers. It must be before: the next
graph holds on to the buffers as it found them. At the end the good ones are added up in the order in which autograd
would have added them, which gives the same bits as the plain loop.

*Terms.* A head can have a finite loss and a NaN gradient (the slope of a root at 0). With `Policy(bad_terms="drop")`
the graph of a step is kept until the step is judged. After a failure each term is run backward by itself, and what
remains when the bad ones are left out is run backward once more, in the order in which a loop without them would have
done it: the same bits. Heads are often stacked into one tensor. Backward of one entry then sends a zero to all the
others, and 0 × Inf is NaN. So at the `stack` a head that takes no part gets no gradient at all, instead of a zero.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from nantrap import finite
from nantrap.guard.diagnosis.describe import add_findings, observe
from nantrap.guard.diagnosis.diagnose import diagnose
from nantrap.guard.driver import Driver
from nantrap.guard.session import Session
from nantrap.guard.window import Diagnosed, LossLike, Micro, Window, as_loss, without_terms
from nantrap.incident import Finding
from nantrap.incident.wording import some_of


def judge_micro_batch(session: Session, driver: Driver, window: Window, *, buffers: bool = True) -> None:
    """Judge the last micro-batch: keep its gradients aside if they are good, drop it if they are not.

    Args:
        session: of the run.
        driver: who makes the update.
        window: the step.
        buffers: whether no other forward pass has begun since, so that this micro-batch alone wrote the buffers.
    """
    protected = session.protected
    micro = window.micros[-1]
    window.judged = len(window.micros)
    window.buffers_unjudged = window.buffers_unjudged or not buffers
    norm = finite.gradient_norm(protected.members.gradients())
    suspects = protected.ledger.suspects() if buffers else []
    scalars = [norm, finite.nonfinite_flag(suspects).to(norm.device)]
    if micro.values is None:
        scalars += micro.loss.scalars()
    norm_value, flag, *values = finite.read(scalars)
    micro.values = micro.values or values
    buffers_bad = bool(flag) and bool(protected.ledger.names_of_bad())
    # with a scaler an overflow of good losses is its normal search for a scale, which the whole step decides
    gradients_bad = not math.isfinite(norm_value) and not driver.scaling.enabled
    if gradients_bad and not buffers_bad and drop_bad_heads(session, driver, window, micro, norm_value):
        gradients_bad = False
    if not (micro.bad or buffers_bad or gradients_bad):
        window.count(micro)
        window.stash(protected.members.parameters)
        if buffers:
            protected.ledger.mark()
        return
    observation = observe(session, micro, norm_value, buffers_bad=buffers_bad)
    protected.members.clear_gradients()
    diagnosed = diagnose(session, observation)
    drop(session, window, diagnosed, f"micro-batch {len(window.micros)} dropped, the others stay")
    if buffers:
        protected.ledger.restore_mark()


def drop(session: Session, window: Window, diagnosed: Diagnosed, words: str) -> None:
    """This micro-batch takes no part in the step."""
    window.diagnosed.append((diagnosed, words))
    window.dropped += 1
    session.recorder.tally.dropped_micro_batches += 1


def merge(session: Session, window: Window) -> None:
    """The gradients of all good micro-batches together, weighted as if the dropped ones did not exist. Those that the
    loop itself left out change nothing."""
    scale, dropped = 1.0, window.dropped - window.left_by_script
    if dropped and session.policy.accumulation.weight == "mean":
        scale = (window.good + dropped) / window.good
    window.loss *= scale
    window.terms = {name: value * scale for name, value in window.terms.items()}
    window.unstash(session.protected.members.parameters, scale=scale)


_EACH_ENTRY_ALONE = (
    "AddBackward0", "AliasBackward0", "CloneBackward0", "DivBackward0", "MulBackward0", "NegBackward0", "SubBackward0",
    "ToCopyBackward0",
)  # fmt: skip
_LONGEST_CHAIN = 16


class Head(NamedTuple):
    """One term of a loss, or one entry of a vector of terms."""

    name: str
    loss: Tensor
    slot: tuple[Any, int] | None
    """The autograd node that stacked it with others, and its number there."""


def heads_of(given: Mapping[str, Tensor | float]) -> list[Head]:
    """The terms that have a graph, entry by entry, in order."""
    heads: list[Head] = []
    for name, term in given.items():
        if not isinstance(term, Tensor) or not term.requires_grad:
            continue
        if term.dim() == 0:
            heads.append(Head(str(name), term, _slot_of_scalar(term)))
        else:
            node = term.grad_fn
            heads += [Head(f"{name}[{i}]", term[i], _slot(node, i)) for i in range(term.numel())]
    return heads


def drop_bad_terms(session: Session, window: Window, micro: Micro, given: LossLike) -> None:
    """With `bad_terms="drop"`, the micro-batch continues without the terms whose values are bad, if any are left."""
    assert micro.values is not None
    named = micro.loss.named(micro.values[1:])
    bad = {name for name, value in named.items() if not math.isfinite(value)}
    if not isinstance(given, Mapping) or not bad or len(bad) == len(named):
        return
    kept = without_terms(given, bad)
    if not any(isinstance(term, Tensor) and term.requires_grad for term in kept.values()):
        return
    window.findings += [Finding("term", n, "forward", value=named[n], note="left out") for n in sorted(bad)]
    micro.absent = frozenset(bad)
    micro.loss = as_loss(kept)
    micro.values = finite.read(micro.loss.scalars())
    _count(session, window, [name for name in named if name in bad])


@contextlib.contextmanager
def left_out(heads: Collection[Head], names: Collection[str]) -> Iterator[None]:
    """Backward inside does not enter the heads of these names through the stack that they share with others."""
    dead: dict[Any, set[int]] = defaultdict(set)
    for head in heads:
        if head.slot is not None and head.name in names:
            dead[head.slot[0]].add(head.slot[1])
    handles = [node.register_hook(functools.partial(_without, slots)) for node, slots in dead.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def drop_bad_heads(session: Session, driver: Driver, window: Window, micro: Micro, norm: float) -> bool:
    """Replace bad gradients by those of the good terms alone, if the bad terms can be found.

    The incident is drafted from the failed step as it was, before anything is replaced.

    Args:
        session: of the run.
        driver: who makes the update.
        window: the step.
        micro: its micro-batch whose gradients are in the parameters, non-finite.
        norm: their norm.

    Returns:
        Whether the parameters hold the gradients of the good terms now. If not, everything is as it was.
    """
    if micro.given is None or micro.bad:
        return False
    members = session.protected.members
    failed = [parameter.grad for parameter in members.parameters]
    try:
        heads = heads_of(micro.given)
        bad = _bad_alone(session, heads, micro.absent)
        if not bad or len(bad) == len(heads) - len(micro.absent):
            raise LookupError("no term is to blame alone, or all of them are")
        members.clear_gradients()
        loss = as_loss(without_terms(micro.given, bad | micro.absent))
        total = loss.total if micro.factor == 1.0 else loss.total * micro.factor
        with left_out(heads, bad | micro.absent):
            (driver.scaling.scaler.scale(total) if driver.scaling.enabled else total).backward(retain_graph=True)
        if not driver.scaling.enabled and finite.any_nonfinite(members.gradients()):
            raise LookupError("what is left is bad as well")
    except (LookupError, RuntimeError):  # RuntimeError: something that the graph holds was written since
        for parameter, gradient in zip(members.parameters, failed, strict=True):
            parameter.grad = gradient
        return False
    good = [parameter.grad for parameter in members.parameters]
    for parameter, gradient in zip(members.parameters, failed, strict=True):
        parameter.grad = gradient
    _diagnose_left_out(session, window, micro, norm, bad)
    for parameter, gradient in zip(members.parameters, good, strict=True):
        parameter.grad = gradient
    driver.scaling.forget()  # the gradients of the good terms are still scaled
    micro.loss, micro.values = loss, finite.read(loss.scalars())
    micro.given = None
    return True


def _bad_alone(session: Session, heads: list[Head], absent: Collection[str]) -> set[str]:
    """The heads whose own backward pass gives a non-finite gradient."""
    members = session.protected.members
    names = {head.name for head in heads}
    bad = set()
    for head in heads:
        if head.name in absent:
            continue
        members.clear_gradients()
        with left_out(heads, names - {head.name}):
            head.loss.backward(retain_graph=True)
        if finite.any_nonfinite(members.gradients()):
            bad.add(head.name)
    return bad


def _diagnose_left_out(session: Session, window: Window, micro: Micro, norm: float, bad: set[str]) -> None:
    """Note and diagnose the step as it failed; it is recorded when the update has been made."""
    assert micro.values is not None
    named = micro.loss.named(micro.values[1:])
    note = "its gradient is not finite"
    found = [Finding("term", name, "backward", value=value, note=note) for name, value in named.items() if name in bad]
    observation = add_findings(observe(session, micro, norm), found)
    with session.protected.ledger.kept():
        diagnosed = diagnose(session, observation)
    names = [name for name in named if name in bad]
    window.diagnosed.append((diagnosed, left_out_in_words(names, of=len(named))))
    _count(session, window, names)


def left_out_in_words(names: Sequence[str], *, of: int) -> str:
    """What was done: `loss term head3 left out, the other 7 applied`."""
    kept = of - len(names)
    others = f"the other {kept} applied" if kept > 1 else "the other one applied"
    return f"loss term{'s' * (len(names) > 1)} {some_of(names, 8)} left out, {others}"


def _count(session: Session, window: Window, names: list[str]) -> None:
    window.left_out += names
    session.recorder.tally.dropped_terms.update(names)


def _slot_of_scalar(term: Tensor) -> tuple[Any, int] | None:
    """Where a scalar that was taken out of a vector (`losses[3]`, `for loss in losses`) was stacked into it."""
    node: Any = term.grad_fn
    output = term.output_nr
    for _ in range(_LONGEST_CHAIN):
        name = "" if node is None else node.name()
        if name == "SelectBackward0" and len(_saved(node, "_saved_self_sym_sizes", ())) == 1:
            size = int(_saved(node, "_saved_self_sym_sizes", (0,))[0])
            return _slot(node.next_functions[0][0], int(_saved(node, "_saved_index", 0)) % max(size, 1))
        if name == "UnbindBackward0":
            return _slot(node.next_functions[0][0], output)
        node, output = _only_input(node) if name in _EACH_ENTRY_ALONE else (None, 0)
        if node is None:
            return None
    return None


def _slot(node: Any, index: int) -> tuple[Any, int] | None:
    """Entry `index` of a vector, down to the `stack` that made it."""
    for _ in range(_LONGEST_CHAIN):
        name = "" if node is None else node.name()
        if name == "StackBackward0":
            return (node, index) if index < len(node.next_functions) else None
        if name not in _EACH_ENTRY_ALONE:
            return None
        node, _ = _only_input(node)
    return None


def _only_input(node: Any) -> tuple[Any, int]:
    """The one tensor with a graph that an operation was given, or nothing if there were several."""
    inputs = [edge for edge in node.next_functions if edge[0] is not None]
    return inputs[0] if len(inputs) == 1 else (None, 0)


def _saved(node: Any, name: str, default: Any) -> Any:
    return getattr(node, name, default)


def _without(
    dead: set[int], given: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """No gradient at all for those heads; a head that something else uses as well gets what that sends it."""
    return tuple(
        None if i in dead and gradient is not None and not bool(gradient.any()) else gradient
        for i, gradient in enumerate(given)
    )
