"""Sentences of learning rates, gradients that grow, initialisation and training that stands still (NT5xx)."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "a recurrence that the updates made grow": """
        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, maximize=True)
        def loss_fn(x):
            state = x
            for _ in range(100): state = model(state)
            return state.square().mean()
    """,
    "a rate too high": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
        batches = [torch.randn(6, 4, generator=draw) for _ in range(40)]
        def loss_fn(x): return (model(x) - 1).square().mean()
    """,
    "one update after which a square overflows": """
        model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.zeros_(model[2].weight)
        optimizer = torch.optim.Adam(model.parameters(), lr=4.0)
        batches = [torch.randn(6, 4, generator=draw) for _ in range(4)]
        def loss_fn(x): return (model(x).clamp(-49, 49).exp() - model(x)).mean()
    """,
    "a bias of 200 before an exp": """
        nn.init.constant_(model.bias, 200.0)
        def loss_fn(x): return (model(x).exp() - 200 * model(x)).mean()
    """,
    "a rate for inputs that nobody scaled": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [2000 + 50 * torch.randn(6, 4, generator=draw)] * 12
        def loss_fn(x): return (model(x) - 1).square().mean()
    """,
    "inputs that nobody scaled, and the wrong direction": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [2000 + 50 * torch.randn(6, 4, generator=draw)] * 12
        def loss_fn(x): return -(model(x) - 1).square().mean()
    """,
    "a rate too high, and no older state": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
        batches = [torch.randn(6, 4, generator=draw) for _ in range(40)]
        import nantrap
        policy = nantrap.Policy(rollback=nantrap.Rollback(anchor_every=0, anchor_bytes=0))
        guard = nantrap.Guard(model, optimizer, max_grad_norm=None, policy=policy, quiet=True)
        def loss_fn(x): return (model(x) - 1).square().mean()
    """,
    "an update that throws the weights away": """
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e15)
        def loss_fn(x): return (model(x) - 1).square().mean()
    """,
    "a recurrence whose gradient Adam cannot square": """
        model = nn.Linear(16, 16, bias=False)
        nn.init.normal_(model.weight, std=2.0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        batches = [torch.randn(8, 16, generator=draw)]
        def loss_fn(x):
            for _ in range(14): x = model(x)
            return x.square().mean()
    """,
    "a large weight, and a loss times 1e21": """
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        model[0].weight.data.mul_(20)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        def loss_fn(x): return (model(x) - 1).abs().mean() * 1e21
    """,
    "a moderate gain in 200 layers": """
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(200)))
        for layer in model: nn.init.normal_(layer.weight, std=1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        def loss_fn(x): return model(x).square().mean()
    """,
    "gradients that grow alone": """
        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight).data.mul_(1.6)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
        batches = [(x, rounds) for x, rounds in zip(batches, (4, 8, 16, 32, 64, 256))]
        def loss_fn(batch):
            state, rounds = batch
            for _ in range(rounds):
                new = model(state)
                state = new + (new.clamp(-1, 1) - new).detach()
            return state.square().mean()
    """,
    "a weight norm whose length is Inf": """
        model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        with torch.no_grad(): model.parametrizations.weight.original0[1] = 3e38
        def loss_fn(x): return model(x).square().mean()
    """,
    "exploding gradients over the steps": """
        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-9)
        batches = [(x, 10.0 ** (6 * i)) for i, x in enumerate(batches + batches)]
        class Steep(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, slope):
                ctx.slope = slope
                return x.clone()
            @staticmethod
            def backward(ctx, g): return g * ctx.slope, None
        def loss_fn(batch): return Steep.apply(model(batch[0]), batch[1]).tanh().square().mean()
    """,
    "a norm that the optimizer computes of gradients of 1e20": """
        class Scaled(torch.optim.SGD):
            @torch.no_grad()
            def step(self, closure=None):
                for p in self.param_groups[0]["params"]:
                    self.state[p]["norm"] = p.grad.pow(2).sum().sqrt()
                    p.sub_(1e-30 * p.grad)
        optimizer = Scaled(model.parameters())
        batches = [(x, 1e20 if i == 2 else 1.0) for i, x in enumerate(batches)]
        def loss_fn(batch): return model(batch[0]).mean() * batch[1]
    """,
    "a gradient of 1e25 under Adam": """
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        def loss_fn(x): return model(x).mean() * (1e25 if x is batches[2] else 1.0)
    """,
    "a norm that overflows": """
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
        import nantrap
        def loss_fn(x): return model(x).mean() * (1e25 if x is batches[2] else 1.0)
        guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0, quiet=True)
    """,
    "weights far too large": """
        layers = [nn.Linear(8, 8) for _ in range(20)]
        for layer in layers: nn.init.normal_(layer.weight, std=60.0)
        model = nn.Sequential(nn.Linear(4, 8), *layers)
        def loss_fn(x): return model(x).square().mean()
    """,
    "gradients that grow, and a loss in its range": """
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-38)
        batches = [(x, 10.0 ** (4 * i)) for i, x in enumerate(batches + batches)]
        class Steep(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, slope):
                ctx.slope = slope
                return x.clone()
            @staticmethod
            def backward(ctx, g): return g * ctx.slope * ctx.slope, None
        def loss_fn(batch): return Steep.apply(model(batch[0]), batch[1]).tanh().square().mean()
    """,
    "a likelihood below zero with labels up to 9": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=30.0)
        batches = [(x, torch.full((6, 1), 9.0)) for x in [torch.rand(6, 4, generator=draw) for _ in range(60)]]
        def loss_fn(batch):
            z = model(batch[0])
            return -(batch[1] * z).mean() * z.detach().abs().mean()
    """,
    "a rate of Inf": """
        def loss_fn(x):
            if x is batches[2]: optimizer.param_groups[0]["lr"] = inf
            return model(x).square().mean()
    """,
    "a loss that is maximised": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=3.0, maximize=True)
        batches = [torch.randn(6, 4, generator=draw) for _ in range(60)]
        def loss_fn(x): return (model(x) - 1).square().mean()
    """,
    "an absurd learning rate that one batch alone does not show": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e4)
        def loss_fn(x): return model(1.0 * x).exp().mean()  # inputs of the model that are no part of the batch
    """,
    "an absurd learning rate and a counter, two lines": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e4)
        counts = iter(range(99))
        def loss_fn(x):
            next(counts)
            return model(x).exp().mean()
    """,
    "a rate that raises the loss of a milder batch, two lines": """
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 0.1), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.full((6, 4), 5.0)] * 3 + [torch.full((6, 4), 1.64)]
        def loss_fn(x): return (model(x) - 1).square().mean() + 0 * (model(x).abs() * (x[:, :1] < 2)).exp().mean()
    """,
    "a rate too high for earlier batches, two lines": """
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 0.1), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.full((6, 4), 5.0)] * 6 + [torch.full((6, 4), 0.3)]
        def loss_fn(x): return (model(x) - 1).square().mean() + 1e-30 * ((model(x) * (x[:, :1] < 2)) ** 8).mean()
    """,
    "a rate too high for batches that are not kept, two lines": """
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 0.1), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.full((6, 4), 50)] * 6 + [torch.full((6, 4), 3)]
        def loss_fn(ids):
            x = ids / 10
            return (model(x) - 1).square().mean() + 1e-30 * ((model(x) * (x[:, :1] < 2)) ** 8).mean()
    """,
    "a teacher that follows weights that were thrown away, two lines": """
        model = nn.Linear(4, 1)
        teacher = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e12)
        def following():
            for x in [torch.randn(6, 4, generator=draw) for _ in range(12)]:
                teacher.load_state_dict(model.state_dict())
                yield x
        batches = following()
        def loss_fn(x): return (model(x) - 1).square().mean() + teacher(x).square().mean()
    """,
    "a rate too high in a model that is called by a method, two lines": """
        class Flow(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Linear(4, 4)
            def log_prob(self, x): return -(x * torch.exp(self.scale(x))).square().sum(1)
        model = Flow()
        optimizer = torch.optim.Adam(model.parameters(), lr=100.0)
        def loss_fn(x): return -model.log_prob(x).mean()
    """,
    "layers of a model beside the guarded one": """
        model = nn.Linear(4, 8)
        critic = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
        for factor, layer in zip((1e3, 1e4, 1e5, 1e6, 1e7, 1e20), critic): nn.init.constant_(layer.weight, factor)
        def loss_fn(x): return critic(model(x).abs()).mean()
    """,
}

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("an absurd learning rate that one batch alone does not show, two lines", "exp overflows, two lines"): (
        "a learning rate of 1e+04 is beyond the stability limit: the updates threw the weights away",
        "with the weights of step 0 the step is finite",
    ),
    ("an absurd learning rate and a counter, two lines", "exp overflows, two lines"): (
        "not decided against lr_too_high, which comes earlier",
    ),
    ("a rate that raises the loss of a milder batch, two lines", "a rate too high, two lines"): (
        "updates on this batch, from the weights of step 0, raise its loss from 0.118 to",
    ),
    ("a rate too high for earlier batches, two lines", "a rate too high, two lines"): (
        "updates with earlier inputs of the model, from the weights of step 0, fail again; with",
        "(updates with earlier inputs of the model stay finite at",
    ),
    ("a rate too high for batches that are not kept, two lines", "a rate too high, two lines"): (
        "the learning rate of 0.1 may be too high",
        "was bad, where the loss first rose, to",
    ),
    ("a teacher that follows weights that were thrown away, two lines", "a rate too high, two lines"): (
        "the step fails with older weights too: the batch, and what the program keeps beside the model",
    ),
    ("a rate too high in a model that is called by a method, two lines", "exp overflows, two lines"): (
        "a learning rate of 100 is beyond the stability limit: the updates threw the weights away",
    ),
    ("a recurrence", "layers of a model beside the guarded one"): ("at the same line gave",),
    ("gradients that grow alone", "a recurrence"): (
        "-> Inf within one backward pass",
        "only the slope grows",
        "the gradient was multiplied by about",
    ),
    ("a bias of 200 before an exp", "a large weight, and a loss times 1e21"): (
        "the weights are initialised far too large: bias adds about 200",
        "bias adds about 200 before anything was learned",
    ),
    ("one update after which a square overflows", "a rate too high"): ("beyond the stability limit: the loss grew\n",),
    ("a rate too high", "a rate too high, two lines"): (
        "(the same steps stay finite at 0.5)",
        "the same batches with a hundredth of the learning rate stay finite",
    ),
    ("a rate too high, two lines", "a rate too high"): (
        "the loss was computed again from its source",
        "18 updates on this batch, from the weights of step 0, fail again; with",
        "(updates on this batch stay finite at",
    ),
    ("a rate too high", "a rate too high, and no older state"): (
        "is beyond the stability limit",
        "the updates since step 0 moved the weights by",
    ),
    ("a rate too high, and no older state", "a rate too high"): (
        "(for example to 0.001)",
        "the learning rate of 50 may be too high",
        "no older state is kept from which the steps could be run again",
    ),
    ("an update that throws the weights away", "a rate too high"): (
        "is beyond the stability limit: the updates threw the weights away",
        "the loss was ",
    ),
    ("an update that throws the weights away, two lines", "one value of 1e25"): (
        "the updates threw the weights away",
        "moved the weights by",
    ),
    ("a moderate gain in 200 layers", "weights far too large"): (
        "the weights are initialised too large for this depth: each of ",
        "or normalise between the layers",
    ),
    ("a recurrence whose gradient Adam cannot square", "a large weight, and a loss times 1e21"): (
        "the weights are initialised far too large: weight multiplies by about 8.",
        "bad_initialisation comes earlier or is more exact, and is named first",
    ),
    ("a recurrence whose gradient Adam cannot square, two lines", "a large weight, and a loss times 1e21"): (
        "with those weights rescaled the step is finite",
    ),
    ("a norm that the optimizer computes of gradients of 1e20", "gradients that grow alone"): (
        "overflows when the optimizer squares it",
    ),
    ("gradients that grow, and a loss in its range", "a rate too high"): (
        "while the loss stayed in its range",
        "the loss was between 0.187 and 0.255",
        "a tenth of the learning rate does not help",
    ),
    ("gradients that grow, and a loss in its range", "a rate that is far too low to matter"): (
        "-> 4.43e+23 -> 3.99e+31 -> nan",
    ),
    ("a gradient of 1e25 under Adam", "a norm that overflows"): (
        "overflows when the optimizer squares it",
        "the weight would never move again",
        "its square, 1.11e+49, is beyond 3.4e+38",
        "a finite gradient of 3.33e+24 overflows when the optimizer squares it",
    ),
    ("a norm that overflows", "a rate too high"): ("bring loss and targets to a sensible scale (gradients above 1e19",),
    ("a norm that overflows", "a gradient of 1e25 under Adam"): (
        "but their norm overflows",
        "or take the norm in float32",
    ),
    ("weights far too large", "a large table and a log of zero at the first step"): (
        "the weights are initialised far too large",
        "with those weights rescaled the step is finite",
        "the oversized weights divided by their gain: finite",
    ),
    ("weights far too large", "a weight norm whose length is Inf"): (
        "20 weights multiply the scale of their input",
        "magnitudes on the way: ",
    ),
    ("a weight norm whose length is Inf", "weights far too large"): ("1 weight multiplies the scale of its input",),
    ("a likelihood below zero with labels up to 9", "a cross-entropy by hand with labels up to 9"): (
        "if this is a cross-entropy",
    ),
    ("gradients that grow alone", "exp overflows"): (
        "at one line gave gradients of",
        "the values at that line stay below",
        "rounds of a loop",
    ),
    ("gradients that grow, and a loss in its range", "a recurrence"): ("multiplies in each round",),
    ("weights far too large", "a rate too high"): (
        "input by more than 4;",
        "multiplies by about",
        "initialise with a gain near 1",
    ),
    ("a rate too high", "exp overflows"): ("before the failure",),
    ("a likelihood below zero with labels up to 9", "percent for shares"): ("the loss fell to ",),
    ("gradients that grow alone", "gradients that grow, and a loss in its range"): (
        "bound the factor of a round (tanh, a norm, a spectral bound)",
    ),
    ("gradients that grow, and a loss in its range", "gradients that grow alone"): (
        "clip the gradients (max_grad_norm",
    ),
    ("a rate of Inf", "a rate too high"): (
        "a learning rate of Inf makes the update non-finite",
        "lr=Inf in a parameter group of the optimizer; the loss and the gradients are finite",
        "the same update with a learning rate of 1e-06 is finite",
        "check what computes the learning rate",
    ),
    ("a loss that is maximised", "a rate too high"): (
        "with a far lower learning rate the loss still ends higher than without any update",
        "check the direction first",
    ),
    ("a rate for inputs that nobody scaled", "inputs that nobody scaled, and the wrong direction"): (
        "a learning rate of 0.1 is beyond the stability limit",
        "a hundred-millionth of the learning rate (the same steps stay finite at 1e-09)",
        "scale inputs and targets: a learning rate as low as this points to their size",
    ),
    ("inputs that nobody scaled, and the wrong direction", "a rate for inputs that nobody scaled"): (
        "with a far lower learning rate the loss still ends higher than without any update",
        "check the direction first",
    ),
    ("a rate too high", "a loss that is maximised"): ("a learning rate of 50 is beyond the stability limit",),
    ("a rate too high", "a rate that a schedule raises"): ("the loss went ",),
    ("a rate too high", "gradients that grow alone"): (
        "the loss grew until it overflowed",
        "an earlier batch has a far larger loss now",
    ),
}
