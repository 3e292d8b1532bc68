"""`torch.compile` with `torch._inductor.config.nan_asserts`: compiled code asserts its inputs and outputs."""

from __future__ import annotations

from zoo.running import Alarm, Run


class InductorNanAsserts:
    """The model is compiled, the loss outside it is not. An assertion names no place in the program."""

    name = "inductor_nan_asserts"
    about = "`torch.compile` with `nan_asserts`"
    packages = ("torch",)
    preload = ("torch._dynamo", "torch._inductor.compile_fx")
    baseline = "inductor_plain"
    seconds = 180
    stops = True

    def __init__(self, *, asserts: bool = True) -> None:
        self.asserts = asserts
        if not asserts:
            self.name, self.about, self.stops = "inductor_plain", "`torch.compile` without a check", False

    def train(self, run: Run) -> None:
        """Train until an assertion fails."""
        import torch._inductor.config as inductor

        inductor.compile_threads = 1
        inductor.nan_asserts = self.asserts
        case = run.build()
        case["model"].compile()  # in its place: a program that reads a layer of its model finds it
        for batch in run.batches():
            phase = "forward"
            try:
                loss = run.loss(batch)
                phase = "backward"
                loss.backward()
            except AssertionError as error:
                if not self.asserts or error.args:  # the assertions of the generated code say nothing
                    raise
                run.alarm(Alarm(phase=phase))
                return
            case["optimizer"].step()
            case["optimizer"].zero_grad()


TOOLS = (InductorNanAsserts(), InductorNanAsserts(asserts=False))
