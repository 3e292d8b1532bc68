"""The loss as the user gives it: a scalar tensor, or a dict of named terms whose sum is the loss."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nantrap.errors import UsageError

LossLike = Tensor | Mapping[str, "Tensor | float"]


NO_TERMS: dict[str, Tensor] = {}


@dataclass(slots=True)
class Loss:
    """The total with its graph, and each term's values without one."""

    total: Tensor
    terms: dict[str, Tensor]

    def scalars(self) -> list[Tensor]:
        """The total, then every value of every term, as detached scalars in a fixed order."""
        flat = [self.total.detach().reshape(())]
        for term in self.terms.values():
            flat += [term] if term.dim() == 0 else list(term.reshape(-1).unbind())
        return flat

    def named(self, values: list[float]) -> dict[str, float]:
        """Term values as read (without the total), by name; entries of a vector term are `heads[3]`."""
        names: list[str] = []
        for name, term in self.terms.items():
            names += [name] if term.dim() == 0 else [f"{name}[{i}]" for i in range(term.numel())]
        return dict(zip(names, values, strict=True))


def as_loss(given: LossLike) -> Loss:
    """Check what was given and add up the terms, in order, as the user would have written it."""
    if isinstance(given, Tensor):
        loss = Loss(given, {})
    elif isinstance(given, Mapping) and not hasattr(given, "loss"):  # the outputs of a model are a dict with that too
        loss = _from_terms(given)
    else:
        raise UsageError(
            f"the loss must be a scalar tensor or a dict of named terms, got {type(given).__name__}. {_remedy(given)}"
        )
    total = loss.total
    if total.numel() != 1:
        raise UsageError(
            f"the loss has shape {tuple(total.shape)}; backward needs a scalar. Reduce it, e.g. loss.mean(), or give a "
            "dict of named terms"
        )
    if not total.requires_grad:
        raise UsageError(
            "the loss has no graph, so nothing can learn from it. This happens when it was computed under "
            "torch.no_grad() or inference_mode, when .detach(), .item() or a new torch.tensor(...) cut it off, when "
            "every parameter it depends on is frozen, or when a batch contributes no term at all (e.g. no masked "
            "token); skip such a batch before the guard"
        )
    return loss


def _remedy(given: object) -> str:
    """What to do about a loss that is neither a tensor nor a dict."""
    if given is None:
        return "Does the function that computes it end with `return loss`?"
    if isinstance(given, (tuple, list)):
        return "Give the loss alone, without the outputs of the model"
    if hasattr(given, "loss"):
        return "Give its .loss"
    return "If it is a float: .item() or float() cut it off from the graph"


def _from_terms(terms: Mapping[str, Tensor | float]) -> Loss:
    """The sum of named terms; a vector counts as the sum of its heads."""
    if not terms:
        raise UsageError("the loss is an empty dict; give at least one named term")
    tensors: dict[str, Tensor] = {}
    summands: list[Tensor] = []
    for name, term in terms.items():
        if not isinstance(term, (Tensor, int, float)):
            raise UsageError(
                f"loss term {name!r} is a {type(term).__name__}; a term is a scalar tensor or a number"
                + (": leave it out" if term is None else "")
            )
        tensor = term if isinstance(term, Tensor) else torch.tensor(float(term))
        if tensor.dim() > 1:
            raise UsageError(
                f"loss term {name!r} has shape {tuple(tensor.shape)}; a term is a scalar, or one value per head"
            )
        summands.append(tensor if tensor.dim() == 0 else tensor.sum())
        tensors[str(name)] = tensor.detach()
    return Loss(functools.reduce(operator.add, summands), tensors)


def without_terms(given: Mapping[str, Tensor | float], bad: set[str]) -> dict[str, Tensor | float]:
    """The terms that are left when the bad ones are dropped; a vector term keeps its good heads under their names."""
    kept: dict[str, Tensor | float] = {}
    for name, term in given.items():
        if name in bad:
            continue
        heads = [f"{name}[{i}]" for i in range(term.numel())] if isinstance(term, Tensor) and term.dim() == 1 else []
        if isinstance(term, Tensor) and bad.intersection(heads):
            kept.update({head: term[i] for i, head in enumerate(heads) if head not in bad})
        else:
            kept[name] = term
    return kept
