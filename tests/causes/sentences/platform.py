"""Sentences of faults of the hardware, a kernel or a compiler (NT7xx)."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "fails once": """
        calls = []
        def loss_fn(x):
            calls.append(1)
            return model(x).square().mean() * (nan if len(calls) == 3 else 1.0)
    """,
    "a bit that flipped": """
        every = batches
        class Loader:
            def __iter__(self):
                for i, x in enumerate(every[:5]):
                    if i == 3: model.weight.detach().numpy().view("int32")[1, 2] |= 0x7F800000
                    yield x
        batches = Loader()
        def loss_fn(x): return model(x).square().mean()
    """,
    "a kernel of another library": """
        @torch.library.custom_op("sentences::halve", mutates_args=())
        def halve(x: torch.Tensor, bad: bool) -> torch.Tensor: return x / (0.0 if bad else 2.0)
        @halve.register_fake
        def _(x, bad): return torch.empty_like(x)
        halve.register_autograd(lambda ctx, g: (g / 2, None))
        def loss_fn(x): return halve(model(x), x is batches[2]).square().mean()
    """,
}

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("a bit that flipped", "a row written between two steps"): (
        "has the bits of a damaged number",
        "its bits are not those that arithmetic writes for NaN",
        "if it happens again at other places of the same device",
    ),
    ("a bit that flipped", "a row copied in the step"): ("no write to it was counted; NumPy",),
    ("a kernel of another library", "division by zero"): ("is not an operation of PyTorch",),
    ("a kernel of another library", "a temperature of 0"): ("the kernel sentences.halve made non-finite values",),
    ("fails once", "a generator that the loss holds"): (
        "the failure did not repeat: run again twice",
        "makes the replay exact",
        "nothing: the same step once more: finite",
    ),
    ("fails once", "a different failure each time"): ("two replays are finite and give the same loss",),
    ("fails once", "one sample alone"): (
        "either something the step reads was not restored",
        "the place is read from the graph of the failed pass",
        "the failure does not repeat in it",
        "the replay is finite: ",
    ),
    ("a kernel of another library", "exp overflows"): ("with a plain PyTorch version on these inputs",),
}
