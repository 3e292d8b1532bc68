"""Sentences of no cause could be established (NT000)."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "nan in a cached table": """
        @functools.lru_cache(None)
        def table(key): return 1.0 / torch.arange(key, key + 3.0)
        def loss_fn(batch): return (model(batch[0]) * table(batch[1])).square().mean()
        batches = [(x, float(2 - i)) for i, x in enumerate(batches[:3])]
    """,
    "a constant that float32 cannot hold": """
        def loss_fn(x): return -F.logsigmoid((model(x) - model(x).detach()) * 1e39).mean()
    """,
    "a rate of -1 in lgamma": """
        batches = [(x, torch.randint(0, 5, (6, 3), generator=draw).float()) for x in batches]
        shift = torch.zeros(6, 3)
        def loss_fn(batch):
            shift[0, 0] = -batch[1][0, 0] - 1 if batch is batches[2] else 0.0
            rate = F.softplus(model(batch[0])) + 0.1
            return (rate - batch[1] * rate.log() + torch.lgamma(batch[1] + 1 + shift)).mean()
    """,
    "a loss that overflows to Inf in a sum": """
        def loss_fn(x):
            z = model(x).square() + (3e38 if x is batches[2] else 0.0)
            return z.sum()
    """,
    "a counter outside the model": """
        turn = iter(range(9))
        def loss_fn(x): return model(x).square().mean() * (nan if next(turn) == 2 else 1.0)
    """,
    "a rate that is far too low to matter": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
        batches = [(torch.randn(6, 4, generator=draw), 10.0 ** (5 * i)) for i in range(9)]
        def loss_fn(batch): return ((model(batch[0]) - 1).square().mean() * batch[1] + 1).square()
    """,
    "a generator that the loss holds": """
        own = [torch.rand(1) for _ in range(9)]
        def stream():
            for i, value in enumerate(own): yield value * (nan if i == 2 else 1.0)
        turn = stream()
        def loss_fn(x): return model(x).square().mean() * next(turn).item()
    """,
    "a weight of Inf that NumPy computed": """
        weights = [1.0, 1.0, inf]
        def loss_fn(x): return model(x).square().mean() * weights[next(i for i, b in enumerate(batches) if b is x)]
    """,
    "Inf minus Inf in a matrix product": """
        plain = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        masks = torch.tensor([[inf, 1.0], [-inf, 1.0], [0.0, 1.0]])
        def loss_fn(x): return (model(x).square() + 1).mm(masks if x is batches[2] else plain).sum()
    """,
    "a steep acos under a loss of 1e37": """
        nn.init.zeros_(model.weight), nn.init.constant_(model.bias, 5.0)
        def loss_fn(x): return (torch.tanh(model(x)).acos() * (1e37 if x is batches[2] else 1.0)).sum()
    """,
    "where after logit": """
        batches[2] *= 1e3
        def loss_fn(x):
            z = model(x).sigmoid()
            return torch.where((z > 0) & (z < 1), z.logit(), 0.0).mean()
    """,
    **{
        f"{what}, two lines": f"""
        turn = iter([1.0, 1.0, 0.0, 1.0])
        model.register_buffer("slow_weight", torch.zeros(3, 4))
        def copy(): model.slow_weight.copy_(model.weight.detach() / next(turn))
        def loss_fn(x):
            {body}
    """
        for what, body in {
            "a mean over a mask of the loop": "m = torch.ones(3) * next(turn); return (model(x) * m).sum() / m.sum()",
            "a row over a mask of the loop": "m = torch.ones(3) * next(turn); return (model(x) * m / m).mean()",
            "an input that the loop made": "return model(x / next(turn)).square().mean()",
            "a target that the loop made": "return F.mse_loss(model(x), torch.zeros(6, 3) / next(turn))",
            "a copy written before the model ran": "copy(); return model(x).square().mean()",
            "a copy written after the model ran": "y = model(x); copy(); return y.square().mean()",
        }.items()
    },
}

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("a constant that float32 cannot hold", "a counter outside the model"): (
        "the constant 1e+39 is beyond 3.4e+38, where float32 ends: it is Inf there",
    ),
    ("a rate that is far too low to matter", "a rate too high"): (
        "a hundredth of the learning rate does not help",
        "a tenth of the learning rate from an older state on: not finite",
    ),
    ("a generator that the loss holds", "fails once"): ("what a replay cannot restore: turn (generator)",),
    ("a counter outside the model", "a loss that overflows to Inf in a sum"): (
        "the failure did not repeat, so nothing could be tried",
    ),
    ("a loss that overflows to Inf in a sum", "a counter outside the model"): (
        "no rule of nantrap fits the inputs of this operation",
    ),
    ("a rate of -1 in lgamma", "a count of -1"): ("does not fail again when it is rebuilt from its samples",),
    ("nan in a cached table", "nan in the batch"): (
        "It was made before the replay",
        "a cached table, a closure",
    ),
    ("a rate of -1 in lgamma", "log of zero"): ("no cause could be established",),
    ("a weight of Inf that NumPy computed", "label smoothing on a masked class"): (
        "aten.mul was given a Python number that is Inf",
        "where the number was computed was not seen: in Python, in NumPy, or by .item() of a tensor",
        "check the code that computes this number",
    ),
    ("Inf minus Inf in a matrix product", "a masked matrix in a product"): (
        "no rule of nantrap fits the inputs of this operation",
    ),
    ("nan in a cached table", "a counter outside the model"): (
        "the place is known; the tensor that was read there was bad before",
    ),
    ("a mean over a mask of the loop, two lines", "a row over a mask of the loop, two lines"): (
        "0 divided by 0: perhaps a sum over a count, and nothing was selected",
        "numerator and denominator are single numbers, both exactly 0; what made them was not seen",
    ),
    ("an input that the loop made, two lines", "nan in the batch, two lines"): (
        "though what the loop took from its loader is finite: the code between the two made it",
        "guard.attempt(fn, batch) would allow a replay and trials",
    ),
    ("a copy written after the model ran, two lines", "a copy written before the model ran, two lines"): (
        "slow_weight, shaped and named like a trained weight, became non-finite in this step",
        "slow_weight was finite before the step",
        "the code around the model wrote slow_weight",
        "look at what writes slow_weight: an average needs float32 and a divisor that is not 0",
    ),
    ("a copy written before the model ran, two lines", "a copy written after the model ran, two lines"): (
        "before this step; it was finite after the last step",
    ),
}
