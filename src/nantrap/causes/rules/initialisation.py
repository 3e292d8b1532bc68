"""NT5xx: weights that are far too large before the first step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import lone_giant
from nantrap.causes.rules.gradients import overflowed_square
from nantrap.thresholds import LARGE_GAIN

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case

_DEEP = 16
"""Layers from which on a moderate gain of each compounds to an overflow; with fewer, one of them must be large."""
_COMPOUNDED = 1e6
"""What the gains of such layers multiply to at least: a healthy initialisation stays within a factor of 100."""
_KNOWN_LAYOUT = ("Linear", "Conv1d", "Conv2d", "Conv3d", "LSTM", "GRU", "RNN", "Bilinear", "MultiheadAttention")

_BEFORE_THE_SQUARE = 518
"""Weights that made gradients beyond their square come before these: that the square overflowed is where it shows."""
_MOST_NAMED = 3
"""More weights than these are not listed in the help: it says how to initialise them instead."""


@rule("bad_initialisation")
def bad_initialisation(case: Case) -> Claim | None:
    """The first forward pass is already far outside any useful range."""
    if not case.first_step or case.half or case.trace is None:
        return None
    squared = overflowed_square(case)  # finite gradients that only their square, or their norm, cannot hold
    if case.phase not in ("forward", "backward") and squared is None:
        return None
    if case.op in ("div", "log", "sqrt", "rsqrt", "reciprocal", "pow", "acos", "asin") and case.made == "nan":
        return None  # at a pole or outside a domain: no question of size
    gains = {key: float(f"{gain:.3g}") for key, gain in _gains(case).items()}
    suspects = {name: gain for name, gain in gains.items() if gain > LARGE_GAIN}
    deep = not suspects
    if deep:
        suspects = {name: gain for name, gain in gains.items() if gain > 1 and case.failure.parameters[name].dim() > 1}
        if len(suspects) < _DEEP or sum(map(math.log, suspects.values())) < math.log(_COMPOUNDED):
            return None
    if not suspects or _is_parameter_itself(case):
        return None
    name, gain = max(suspects.items(), key=lambda item: item[1])

    def rescale() -> None:
        for key, factor in suspects.items():
            case.failure.parameters[key].div_(factor)

    few = len(suspects) <= _MOST_NAMED
    each = ", ".join(f"{key} divided by {factor:g}" for key, factor in suspects.items())
    trial = case.lab.with_weights("rescaled", each if few else "the oversized weights divided by their gain", rescale)
    plural, its = (" multiplies", "its") if len(suspects) == 1 else ("s multiply", "their")
    than = 1 if deep else LARGE_GAIN
    adds = all(key.rpartition(".")[2] == "bias" for key in suspects)
    does = "adds" if adds else "multiplies by"
    facts = [
        f"{name} adds about {gain:.3g} before anything was learned"
        if adds
        else f"{len(suspects)} weight{plural} the scale of {its} input by more than {than:g}; {name} by {gain:.3g}"
    ]
    grown = [f.absmax for f in case.location.frames if f.absmax is not None]
    if len(grown) > 2:
        facts.append("magnitudes on the way: " + " -> ".join(f"{value:.3g}" for value in grown[-5:]))
    if trial.finite is False:
        case.refute("bad_initialisation", trial, "the step stays bad with rescaled weights")
        return None
    return Claim(
        "tried",
        f"the weights are initialised too large for this depth: each of {len(suspects)} multiplies by up to {gain:.3g}"
        if deep
        else f"the weights are initialised far too large: {name} {does} about {gain:.3g}",
        tuple(facts),
        trial=trial,
        shows="with those weights rescaled the step is finite",
        help="initialise with a gain near 1 (nn.init.kaiming_normal_, std = 1/√fan_in)"
        + (", or normalise between the layers" if deep else ""),
        remedies=(Remedy(trial.change, trial),) if few else (),
        precedence=None if squared is None else _BEFORE_THE_SQUARE,
    )


def _is_parameter_itself(case: Case) -> bool:
    """Whether an exponential was given a parameter as it is (a log temperature): it multiplies nothing before that."""
    from nantrap.locate.trace.storage import share_memory

    if case.op not in ("exp", "expm1", "exp2", "cosh", "sinh") or not case.inputs:
        return False
    argument = case.inputs[0]
    same = [p.detach() for p in case.failure.parameters.values() if p.shape == argument.shape]
    return any(share_memory(p, argument) or bool((p == argument).all()) for p in same)


def _gains(case: Case) -> dict[str, float]:
    """By how much each weight multiplies the scale of its input. One with a single giant value has no such gain."""
    from nantrap.locate.torch_private import parameters_of

    owners = {
        f"{name}.{key}" if name else key: type(module).__name__
        for name, module in case.failure.root.named_modules()
        for key in parameters_of(module)
    }
    found = {}
    for name, parameter in case.failure.parameters.items():
        gain = _gain(parameter, owners.get(name, ""))
        if math.isfinite(gain) and gain > 0 and lone_giant(parameter) is None:
            found[name] = gain
    return found


def _gain(weight: Tensor, owner: str) -> float:
    """How a weight scales what it multiplies: std · √fan_in for a matrix, its magnitude for a vector or a table.

    The scale of a weight that is spread over ranks is that of this rank's part; 0.0 where there is nothing to read.
    """
    from nantrap.finite import readable

    values = readable(weight)
    if values is None:
        return 0.0
    parts = 2 if weight.is_complex() else 1
    typical = math.sqrt(float(values.double().square().mean()) * parts)
    if weight.dim() < 2 or owner == "Embedding":
        return typical
    fan_in = weight.numel() // max(len(weight), 1)
    if owner not in _KNOWN_LAYOUT:  # a parameter that the user made: either side may be the input
        fan_in = max(fan_in, weight.numel() // weight.shape[-1])
    return typical * math.sqrt(fan_in)
