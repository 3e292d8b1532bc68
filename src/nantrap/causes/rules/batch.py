"""NT1xx: a batch that holds non-finite values or sentinels, or that is in other units than the ones before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import (
    EXPONENTIALS,
    describe,
    in_words,
    kinds_of,
    listed,
    ordinary_tensors,
    recomputed,
    without,
)
from nantrap.causes.rules.unselected import is_left_out
from nantrap.causes.usual import Unusual, in_usual_range, sizes_of, unusual_inputs
from nantrap.incident import Trial
from nantrap.incident.wording import some_of
from nantrap.thresholds import MASKED, is_absurd, is_large

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.replay.samples import Samples
    from nantrap.locate.trace import External


@rule("bad_input_data")
def bad_input_data(case: Case) -> Claim | None:
    """The batch holds values that no model can train on."""
    if case.external is None and (read := _bad_but_not_traced(case)) is not None:
        return read
    if case.external is None or case.external.kind != "batch":
        return _sentinel(case)
    if is_left_out(case):
        return None  # missing values that the program knows of: see where_unselected_branch
    return _bad_before_the_pass(case, case.external)


def _bad_but_not_traced(case: Case) -> Claim | None:
    """The model's input, or a tensor that the loss reads, is non-finite, and no replay found it in the batch."""
    if case.location.entered and case.location.constant is not None:
        name, tensor = case.location.constant
        return Claim(
            "measured",
            f"{name} is non-finite where the loop takes it over",
            (f"{case.location.entered[1]}; it was so before any operation of this round of the loop",),
            help=f"fix the code that computes {name}, or leave such values out of the step",
        )
    seen_first = case.capture is None or (case.made == "nan" and not all(t.isfinite().all() for t in case.inputs))
    if seen_first and (given := case.bad_model_inputs()):
        names = some_of(list(dict.fromkeys(name for name, _ in given)))
        return Claim(
            "hint",
            f"the model's input already contains {kinds_of(tensor for _, tensor in given)}: {names}",
            tuple(f"{name} {describe(tensor)}" for name, tensor in given[:3]),
            help=_where_made(names, several=len(given) > 1),
        )
    if case.location.beside:
        return _beside_the_graph(case)
    if case.location.constant is not None and case.location.constant[0]:
        name, tensor = case.location.constant
        return Claim(
            "hint",
            f"a tensor that the loss reads without a gradient is non-finite: {name}",
            (f"{name} {describe(tensor)}",),
            help=_where_made(name),
        )
    return None


def _beside_the_graph(case: Case) -> Claim:
    """The program holds a bad value that was made without a graph, and nothing shows what the loss read."""
    name, way = case.location.beside[:2]
    return Claim(
        "hint",
        f"the program holds a non-finite value that was made without a graph: {name}",
        (way,),
        help=f"look where {name} is made, and leave such values out",
    )


def _bad_before_the_pass(case: Case, external: External) -> Claim | None:
    """A tensor of the batch was non-finite before the forward pass, and in which samples."""
    samples_of = {f.name: f.samples for f in case.location.findings if f.kind == "batch"}
    bad = (external, *case.location.also_external)
    samples = tuple(sorted({each for own in samples_of.values() for each in own}))
    trial: Trial | None = None
    guilty = case.location.samples.guilty
    if case.location.samples.rest_is_finite:
        trial = case.lab.without_samples(guilty, case.location.samples.size or 0)
    given = case.was_given(external.tensor)
    if (given == "argument" and case.loop_is_finite) or case.made_from_finite(external.tensor):
        case.notes.append(
            f"{external.name} of the model is non-finite, though what the loop took from its loader is finite: the "
            "code between the two made it"
        )
        return None
    if not given and case.location.beside:
        return _beside_the_graph(case)
    names = some_of([in_words(each.name) for each in bad])
    kinds = kinds_of(each.tensor for each in bad)
    what = {
        "loader": f"the input batch already contains {kinds}" + ("" if names == "batch" else f": {names}"),
        "argument": f"the model's input already contains {kinds}: {names}",
    }.get(given, f"a tensor that the loss reads without a gradient is non-finite: {in_words(external.name)}")
    before = " before the forward pass" if given else ""
    return Claim(
        "measured" if given == "loader" and not _may_be_left_out(case, external) else "hint",
        what,
        tuple(
            f"{in_words(each.name)} {describe(each.tensor)}{before}{_in(samples_of.get(each.name, ()))}"
            for each in bad[:4]
        ),
        trial=trial,
        shows=f"{without(guilty, samples)} the step is finite",
        remedies=() if trial is None else (Remedy(trial.change, trial),),
        help=f"fix or remove the {'sample' if len(bad) == 1 else 'samples'} where {names} {_are(bad)} created"
        if given == "loader"
        else _where_made(names, several=len(bad) > 1),
    )


def _may_be_left_out(case: Case, external: External) -> bool:
    """Whether only the loss reads the tensor, and was not computed again: it may leave the bad values out."""
    from nantrap.locate import tensors_of
    from nantrap.locate.trace.storage import share_memory

    if case.failure.repeatable:
        return False
    given = [(call.args, call.kwargs) for call in case.failure.calls]
    return not any(share_memory(t, external.tensor) for _, t in tensors_of(given))


def _in(samples: Sequence[int]) -> str:
    """`, sample 4`; empty if they are not known."""
    return f", {'sample' if len(samples) == 1 else 'samples'} {listed(samples)}" if samples else ""


def _are(several: Sequence[object]) -> str:
    return "is" if len(several) == 1 else "are"


def _where_made(name: str, *, several: bool = False) -> str:
    """The help about tensors of which only the program knows what made them."""
    are = "are" if several else "is"
    return f"look where {name} {are} made; a state that the loop carries from step to step has to be made new as well"


def _sentinel(case: Case) -> Claim | None:
    """A value that marks a missing one (1e30, the largest float): finite, and no measurement."""
    found = largest_input(case)
    if found is None or not is_sentinel(found.tensor, found.value):
        return None
    targets = [call.args[1] for call in case.calls_of("aten.binary_cross_entropy")]
    if any(target.shape == found.tensor.shape for target in targets):
        return None  # that loss has a range of its own: see label_out_of_range
    return out_of_range(
        case,
        found,
        f"the batch holds a value that is no measurement: {found.name} reaches {found.value:.3g}",
        "replace the sentinel or missing-value code before the data reach the model",
    )


@rule("input_out_of_scale")
def input_out_of_scale(case: Case) -> Claim | None:
    """A batch or target lies in another scale than the others."""
    found = largest_input(case)
    if found is None:
        return _in_other_units(case)
    if is_sentinel(found.tensor, found.value):
        return None
    return out_of_range(
        case,
        found,
        f"the batch is out of scale: {found.name} reaches {found.value:.3g}",
        "check the range where the data are read, and scale or drop what lies outside it",
    )


def _in_other_units(case: Case) -> Claim | None:
    """A batch that no network would find absurd, and that is far outside the batches before it.

    Where an exponential overflowed there are two explanations: code that passes an unbounded number to exp, and a batch
    in another unit. Three things decide. Code that has a form which is exact and does not overflow is the cause, if the
    step is finite with it. Otherwise it is the batch, if it is too far outside to be an unusual sample, and the step is
    finite with the batch in its usual range.
    """
    if case.made != "inf" or case.half or case.phase not in ("forward", "backward") or case.failure.norm_overflowed:
        return None
    unusual = unusual_inputs(case)
    if not unusual or not _left_the_range(case) or is_left_out(case):
        return None  # what overflowed in a branch that the program does not use was expected by it
    furthest = unusual[0]
    if furthest.sample is not None:
        return _beside_the_others(case, furthest, furthest.sample)
    claim = Claim(
        "hint",
        f"the batch is in another scale than those before it: {furthest.name} reaches {furthest.value:.4g}",
        (f"{furthest.words}: {furthest.factor:.3g} times",),
        help=f"check the range of {furthest.name} where the data are read, and scale or drop what lies outside it",
    )
    if not case.failure.repeatable or (case.op in EXPONENTIALS and not furthest.in_other_units):
        return claim
    if case.op in EXPONENTIALS and case.feeds_a_logarithm and case.lab.in_log_space().finite:
        return claim
    scaled = in_usual_range(case.failure.batch, unusual)
    trial = case.lab.with_batch("usual_range", "the batch brought to the range of those before it", scaled)
    if trial.finite is False:
        return None
    return replace(claim, has="tried", trial=trial, shows="with the batch in that range the step is finite")


def _beside_the_others(case: Case, found: Unusual, sample: int) -> Claim | None:
    """One sample is far outside the others of its batch, and no batches before show what is usual."""
    samples = case.location.samples
    trial = None
    if case.failure.repeatable:
        if not samples.rest_is_finite or tuple(samples.guilty) != (sample,):
            return None
        trial = case.lab.without_samples(samples.guilty, samples.size or 0)
    return Claim(
        "hint" if trial is None else "tried",
        f"the batch is out of scale: {found.name} reaches {found.value:.4g} in sample {sample}",
        (f"{found.words}: {found.factor:.3g} times",),
        trial=trial,
        shows="without that sample the step is finite",
        remedies=() if trial is None else (Remedy(trial.change, trial),),
        help=f"check the range of {found.name} where the data are read, and scale or drop what lies outside it",
    )


def _left_the_range(case: Case) -> bool:
    """Whether the exact result is a number that the dtype cannot hold; at a pole (log 0, 1/0) it is no number."""
    if case.op in EXPONENTIALS:
        return True
    exact = recomputed(case, "float64")
    return exact is not None and bool(exact.isfinite().all())


_SURE_SENTINEL = 1e29
"""Programs write 1e30 or the largest float for "missing"; rounding may leave a little less of it."""
_LIKELY_SENTINEL = 1e15
"""A repeated whole number of this size that ends in 00 or 99 was written by a program: no instrument has 15 digits."""


@dataclass(frozen=True, slots=True)
class Extreme:
    """The largest value that came in from outside: its tensor, name and magnitude."""

    tensor: Tensor
    name: str
    value: float


def largest_input(case: Case) -> Extreme | None:
    """The largest value that came in from outside: from the batch, or in the two-line form from the model's inputs."""
    from nantrap.locate.replay.replay import given_to
    from nantrap.locate.twoline.caller import given_by_loop

    unseen = case.capture is None and not case.failure.repeatable  # a buffer of the model, say
    if (case.made == "" and not unseen) or case.phase not in ("forward", "backward", "optimizer"):
        return None
    given = list(ordinary_tensors(case.failure.batch))
    if not (case.failure.repeatable and given):  # a loss that was computed again may show no batch: `model(draw())`
        given += [("the batch of the loop", tensor) for _, tensor in ordinary_tensors(given_by_loop())]
        for call in case.failure.calls:
            named = ordinary_tensors(given_to(call, case.failure))
            given += [(name, tensor) for name, tensor in named if tensor.grad_fn is None]
    if not case.failure.repeatable and case.phase == "forward" and case.location.module == "loss":
        given += [("a target of the loss", t) for t in case.inputs[1:]]
    worst: Extreme | None = None
    for path, tensor in given:
        if tensor.is_floating_point() and tensor.numel() and not _is_added_mask(tensor):
            value = float(tensor.detach().abs().max())
            if value < float("inf") and (worst is None or value > worst.value):
                worst = Extreme(tensor.detach(), in_words(path), value)
    return worst if worst is not None and is_absurd(worst.value) else None


def is_sentinel(tensor: Tensor, value: float) -> bool:
    """Whether a value is one that programs write for "missing", rather than a measurement in another scale."""
    if value >= _SURE_SENTINEL:
        return True
    whole = value == round(value) and int(value) % 100 in (0, 99)
    return value >= _LIKELY_SENTINEL and (whole and int((tensor.abs() == value).sum()) > 1)


def out_of_range(case: Case, found: Extreme, summary: str, advice: str) -> Claim | None:
    """A finite value that overflows: proven if the step is finite without its samples, or with the batch rescaled."""
    facts = [_reaches(found, ())]
    samples = case.location.samples
    if not (case.failure.repeatable and any(True for _ in ordinary_tensors(case.failure.batch))):
        alone = [i for i, size in enumerate(sizes_of(found.tensor)) if is_absurd(size)]
        facts = [_reaches(found, alone if len(alone) < len(found.tensor) else ())]
        return Claim("hint", summary, tuple(facts), help=advice) if not case.grew else None
    trial = None
    shows = ""
    if samples.guilty and samples.rest_is_finite:
        extreme = _extreme_samples(found, samples)
        facts = [_reaches(found, extreme)]
        trial = case.lab.without_samples(samples.guilty, samples.size or 0)
        shows = f"{without(samples.guilty, extreme)} the step is finite"
    if trial is None or not trial.finite:
        trial = case.lab.with_batch("rescaled_batch", "the batch in the usual scale", rescaled(case.failure.batch))
        shows = "with the batch brought to the usual scale the step is finite"
    if trial.finite is False:
        return None
    remedies = (Remedy(trial.change, trial),)
    return Claim("tried", summary, tuple(facts), trial=trial, shows=shows, remedies=remedies, help=advice)


def _reaches(found: Extreme, samples: Sequence[int]) -> str:
    """How large the value is, and in which samples, where they are known."""
    which = f" in {_in(samples).removeprefix(', ')}" if samples else ""
    return f"|{found.name}| reaches {found.value:.4g}{which}, though it is finite"


def rescaled(batch: Any) -> Any:
    """The batch with tensors of large values brought back to the usual scale."""
    import torch

    from nantrap.finite import is_ordinary
    from nantrap.locate.trace.storage import map_leaves

    def scale(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() and is_ordinary(leaf) and leaf.numel()):
            return leaf
        size = float(leaf.abs().max())
        return leaf / size if is_large(size) else leaf

    return map_leaves(batch, scale)


def _extreme_samples(found: Extreme, samples: Samples) -> list[int]:
    """The guilty samples that hold a value as absurd as the largest one; none if that one lies elsewhere."""
    if found.tensor.dim() == 0 or found.tensor.shape[0] != samples.size:
        return []
    sizes = {i: float(found.tensor[i].abs().max()) for i in samples.guilty}
    return [i for i, size in sizes.items() if is_absurd(size)] if max(sizes.values()) == found.value else []


def _is_added_mask(tensor: Tensor) -> bool:
    """0 and one very negative number: a mask that is added to scores, not a measurement."""
    return float(tensor.detach().min()) <= MASKED and tensor.detach().unique().numel() <= 2
