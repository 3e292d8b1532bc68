"""log(softmax(x)), log(sigmoid(x)) and log(1 + exp(x)) computed in log space, for one run.

The second call of such a pair takes the logarithm of what the first one has rounded to 0 or Inf already. In this mode
every softmax, sigmoid and exp keeps its logarithm next to its result, selections (an index, a gather, a view) are made
on both, and a later `log` takes the one that was kept: what `log_softmax`, `logsigmoid` and `softplus` would give.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from nantrap.locate.torch_private import ThroughoutMode

_SELECTING = frozenset(
    {"gather", "__getitem__", "index_select", "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "t",
     "permute", "take_along_dim", "masked_select", "contiguous", "clone", "diagonal", "select", "narrow", "unbind"}
)  # fmt: skip


class _Kept(NamedTuple):
    """A result with its logarithm, and the argument where it is elementwise."""

    result: Tensor  # held, so that its id stays its own
    logarithm: Tensor
    argument: Tensor | None
    origin: str


class LogSpace(ThroughoutMode):
    """Computes logarithms of softmax, sigmoid and exp in log space. `hits` counts them; `names`: of which functions."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, _Kept] = {}
        self.hits = 0
        self.names: set[str] = set()

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a logarithm from what is kept beside its argument; keep the logarithm of what else is computed."""
        name = getattr(func, "__name__", "")
        kept = self._kept.get(id(args[0])) if args and isinstance(args[0], Tensor) else None
        if kept is not None and name in ("log", "log_"):
            return self._hit(kept.logarithm, kept.origin)
        if kept is not None and name == "log1p" and kept.origin == "exp" and kept.argument is not None:
            return self._hit(F.softplus(kept.argument), "1 + exp")
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            beside = self._beside(name, args, kwargs, kept)
            if beside is not None and beside[0].shape == result.shape:
                self._kept[id(result)] = _Kept(result, *beside)
        return result

    def _hit(self, logarithm: Tensor, origin: str) -> Tensor:
        self.hits += 1
        self.names.add(origin)
        return logarithm

    def _beside(
        self, name: str, args: tuple[Any, ...], given: dict[str, Any], kept: _Kept | None
    ) -> tuple[Tensor, Tensor | None, str] | None:
        """The logarithm of a result, where it can be had without the result."""
        x = args[0] if args else None
        if name == "softmax" and isinstance(x, Tensor):
            known = {key: given[key] for key in ("dim", "dtype") if key in given}
            return F.log_softmax(x, *args[1:2], **known), None, "softmax"
        if name in ("sigmoid", "sigmoid_") and isinstance(x, Tensor):
            return F.logsigmoid(x), x, "sigmoid"
        if name in ("exp", "exp_") and isinstance(x, Tensor):
            return x, x, "exp"
        if kept is None:
            return None
        if name in _SELECTING:
            again = getattr(Tensor, name)
            argument = None if kept.argument is None else again(kept.argument, *args[1:], **given)
            return again(kept.logarithm, *args[1:], **given), argument, kept.origin
        plus_one = len(args) > 1 and isinstance(args[1], (int, float)) and args[1] == 1
        if plus_one and kept.argument is not None:
            if name in ("__add__", "__radd__", "add") and kept.origin == "exp":
                return F.softplus(kept.argument), None, "1 + exp"
            if name in ("__rsub__", "rsub") and kept.origin == "sigmoid":
                return F.logsigmoid(-kept.argument), None, "1 - sigmoid"
        return None
