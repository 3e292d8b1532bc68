"""The usual detector that people write: `isfinite` on every module's output, on the loss and on the gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zoo.running import Alarm, Run


class IsfiniteHooks:
    """Raises at the first module whose output is non-finite, or before an update with non-finite gradients."""

    name = "isfinite_hooks"
    about = "`isfinite` in hooks of every module (own, 20 lines)"
    stops = True

    def train(self, run: Run) -> None:
        """Train until something is found."""
        case = run.build()
        first: list[str] = []

        def check(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                tensors = output if isinstance(output, (tuple, list)) else (output,)
                if not first and any(isinstance(t, Tensor) and not bool(t.isfinite().all()) for t in tensors):
                    first.append(name)

            return hook

        for name, module in case["model"].named_modules():
            module.register_forward_hook(check(name))
        for batch in run.batches():
            loss = run.loss(batch)
            if first or not bool(loss.isfinite()):
                run.alarm(Alarm(phase="forward", module=(first[0] if first else "") or "loss"))
                return
            loss.backward()
            bad = [n for n, p in case["model"].named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
            if bad:
                run.alarm(Alarm(phase="backward", module=bad[0].rpartition(".")[0] or "loss"))
                return
            case["optimizer"].step()
            case["optimizer"].zero_grad()


TOOLS = (IsfiniteHooks(),)
