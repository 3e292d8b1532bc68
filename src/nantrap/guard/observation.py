"""What was seen of a bad step, noted before anything is restored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from nantrap import finite
from nantrap.guard.judge import Verdict
from nantrap.guard.state.protected import Protected
from nantrap.guard.window import Micro
from nantrap.incident import Finding, Phase
from nantrap.locate import finding
from nantrap.thresholds import MOST_GRADIENTS


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of a bad step, taken before anything is restored.

    Attributes:
        micro: the micro-batch at fault, or the last one.
        values: its loss and terms as read.
        norm: the gradient norm.
        findings: what is non-finite, with statistics.
        gradients: the gradients by parameter name.
        verdict: what the ranks found.
        update: the update created the non-finite values, and was undone.
        spike: the step is finite and a spike.
        raised: the forward pass ended with an exception.
        harmless: only the loss is bad.
        agreed: every rank is here, so they may exchange what they find.
        micros: all micro-batches of the step, where it is not known which of them is at fault.
        number: which micro-batch of the step is at fault, from 1 on, and of how many, where that is known.
        evaluated: the optimizer evaluated the loss itself, several times in its update.
    """

    micro: Micro
    values: Sequence[float]
    norm: float
    findings: tuple[Finding, ...]
    gradients: Mapping[str, Tensor]
    verdict: Verdict
    update: bool = False
    spike: bool = False
    raised: bool = False
    harmless: bool = False
    agreed: bool = False
    micros: Sequence[Micro] = ()
    number: tuple[int, int] | None = None
    evaluated: bool = False

    @property
    def phase(self) -> Phase:
        """The phase in which it was noticed."""
        if self.update:
            return "optimizer"
        if self.spike and self.findings[0].phase == "data":
            return "data"
        forward = {f.kind for f in self.findings if f.phase == "forward"}
        if self.raised or forward & {"loss", "term", "buffer", "parameter", "spike"}:
            return "forward"
        if self.findings and all((f.kind, f.phase) == ("parameter", "state") for f in self.findings):
            return "state"
        return "backward"


def observe(
    protected: Protected,
    micro: Micro,
    norm: float,
    *,
    verdict: Verdict,
    buffers_bad: bool = False,
    update: Sequence[Finding] = (),
    spike: Finding | None = None,
    harmless: bool = False,
    agreed: bool = False,
    copy_gradients: bool = False,
    evaluated: bool = False,
) -> Observation:
    """Note what is bad.

    Args:
        protected: the state of the run.
        micro: the micro-batch at fault, or the last one.
        norm: the gradient norm as read.
        verdict: what the ranks found.
        buffers_bad: whether the forward pass made buffers non-finite, or the script a parameter without a gradient.
        update: what the update made non-finite; it was undone.
        spike: the value that is far outside its recent range.
        harmless: only the loss is bad.
        agreed: every rank is here.
        copy_gradients: the gradients will be overwritten in place when the step is refused.
        evaluated: the optimizer evaluated the loss itself: the gradients are of its last evaluation, and are not kept.
    """
    values = micro.values or []
    found: list[Finding] = [] if spike is None else [spike]
    found += update
    if values:
        named = micro.loss.named(values[1:])
        found += [Finding("term", n, "forward", value=v) for n, v in named.items() if not math.isfinite(v)]
        if not math.isfinite(values[0]):
            found.append(Finding("loss", "loss", "forward", value=values[0]))
    if not update and not math.isfinite(norm):
        found += _bad_gradients(protected, norm, alone=not found)
    if buffers_bad:
        found += protected.ledger.findings("forward")
        found += [finding("parameter", *bad, "state") for bad in protected.ledger.bad_script_writes()]
    known = {} if evaluated else protected.members.named_gradients()
    gradients = {name: gradient.detach() for name, gradient in known.items()}
    return Observation(
        micro,
        values,
        norm,
        tuple(found),
        {name: grad.clone() for name, grad in gradients.items()} if copy_gradients else gradients,
        verdict,
        update=bool(update),
        spike=spike is not None,
        harmless=harmless,
        agreed=agreed,
        evaluated=evaluated,
    )


def add_findings(observation: Observation, findings: Sequence[Finding]) -> Observation:
    """Adds findings before those of an observation."""
    return replace(observation, findings=(*findings, *observation.findings))


def micro_at_fault(micros: Sequence[Micro]) -> Micro | None:
    """The first micro-batch to whose model output a non-finite gradient came back; `None` if that tells nothing."""
    for micro in micros:
        calls = micro.root_call.chain() if micro.root_call is not None else []
        if finite.any_nonfinite([gradient for call in calls for gradient in call.cotangents.values()]):
            return micro
    return None


def _bad_gradients(protected: Protected, norm: float, *, alone: bool) -> list[Finding]:
    """The gradients that are non-finite; if all are finite, their norm, which overflowed."""
    members = protected.members
    guarded = {name for name, _ in members.named()}
    bad = [
        (name, gradient)
        for name, gradient in members.named_gradients().items()
        if name in guarded and finite.any_nonfinite([gradient])
    ]
    if bad or not alone:
        return [finding("gradient", name, grad, "backward") for name, grad in bad[:MOST_GRADIENTS]]
    gradients = members.gradients()
    if any(hasattr(gradient, "to_local") for gradient in gradients):  # the other ranks may not be here
        note = "every gradient is finite in this rank's shards; the non-finite values are in another rank's"
        return [Finding("grad_norm", "total gradient norm", "backward", value=norm, note=note)]
    exact = finite.exact_norm(gradients)
    note = f"every gradient is finite, their norm is {exact:.4g}, which overflowed to {norm}"
    return [Finding("grad_norm", "total gradient norm", "backward", value=norm, note=note)]
