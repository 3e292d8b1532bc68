"""Sentences of half precision, epsilons, masks near the limit and loss scales (NT4xx)."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "an input that autocast casts to float16": """
        model = nn.Sequential(nn.Linear(4, 1))
        batches = [torch.full((6, 4), 8e4)]
        def loss_fn(x):
            with torch.autocast("cpu", dtype=torch.float16): out = model(x)
            return out.float().square().mean()
    """,
    "a bound of 1 - 1e-6 in bfloat16": """
        batches[2] *= 1e3
        def loss_fn(x):
            p = model(x).bfloat16().sigmoid()
            free = torch.log1p(-p.clamp(max=1.0 - 1e-6))
            covered = free.new_zeros(6, 3).index_add(0, torch.arange(3), free[:3])
            return F.mse_loss((1 - covered.exp()).float(), torch.zeros(6, 3))
    """,
    "an eps of 1e-8 in half": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 0.0
        def loss_fn(x): return model(x / (x.norm(dim=-1, keepdim=True) + 1e-8)).float().square().mean()
    """,
    "a small probability in half": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() * (12 if i == 2 else 1) for i, x in enumerate(batches)]
        def loss_fn(x): return -model(x).softmax(-1).log().float().mean()
    """,
    "atanh of a clamp in bfloat16": """
        model = nn.Linear(4, 3).bfloat16()
        batches = [x.bfloat16() * (60 if i == 2 else 0.1) for i, x in enumerate(batches)]
        def loss_fn(x): return torch.tanh(model(x)).clamp(-1 + 1e-4, 1 - 1e-4).atanh().float().square().mean()
    """,
    "Adam's eps in half": """
        model = nn.Linear(4, 3).half()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        batches = [x.half() for x in batches]
        for x in batches: x[:, 3] = 0.0
        def loss_fn(x): return model(x).float().square().mean()
    """,
    "an eps of 1e-50": """
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-50)
        for x in batches: x[:, 3] = 0.0
        def loss_fn(x): return model(x).square().mean()
    """,
    "a rounded beta": """
        class Momentum(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": 0.1, "beta": torch.tensor(0.999).bfloat16()})
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]: p.sub_(group["lr"] * p.grad / (1 - group["beta"].float()))
        optimizer = Momentum(model.parameters())
        def loss_fn(x): return model(x).square().mean()
    """,
    "a product beyond float16 and a logarithm of zero behind it": """
        model = nn.Linear(4, 4)
        batches[2] = batches[2] * 1000
        def loss_fn(x):
            with torch.autocast("cpu", torch.float16):
                scores = model(x) @ x.T
            return -scores.float().softmax(-1).diagonal().log().mean()
    """,
    "two masks of finfo.min": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() for x in batches]
        floor = torch.full((6, 3), torch.finfo(torch.float16).min, dtype=torch.float16)
        def loss_fn(x):
            scores = model(x) + floor + (floor if x is batches[2] else 0)
            return scores.softmax(-1).float().square().mean()
    """,
    "two large activations in half": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 200.0
        nn.init.constant_(model.weight, -50.0)
        def loss_fn(x): return torch.tanh(model(x) + model(x)).float().sum() + (model(x) + model(x)).float().mean()
    """,
    "a loss summed in half": """
        model = nn.Linear(4, 64).half()
        batches = [x.half() * (60 if i == 2 else 1) for i, x in enumerate(batches)]
        def loss_fn(x): return F.mse_loss(model(x), torch.zeros(6, 64).half(), reduction="sum")
    """,
    "a layer beyond float16": """
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)).half()
        batches = [x.half() * (3000 if i == 2 else 1) for i, x in enumerate(batches)]
        nn.init.constant_(model[0].weight, 30.0)
        def loss_fn(x): return torch.tanh(model(x).float()).mean()
    """,
    "a root with an eps of 1e-8 in half": """
        model = nn.Linear(4, 3, bias=False).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 0.0
        def loss_fn(x): return (model(x).square().sum(-1) + 1e-8).sqrt().float().mean()
    """,
    "a static scale of 2**20": """
        model = nn.Linear(4, 3).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [(x.half(), torch.randint(0, 3, (6,), generator=draw)) for x in batches]
        def loss_fn(batch): return F.cross_entropy(model(batch[0]).float(), batch[1]) * 2**20
    """,
    "a decay that bfloat16 rounds to 1": """
        model = model.bfloat16()
        batches = [x.bfloat16() for x in batches]
        class Averaged(torch.optim.SGD):
            @torch.no_grad()
            def step(self, closure=None):
                for p in self.param_groups[0]["params"]:
                    decay = torch.tensor(0.9996, dtype=p.dtype)
                    squares = self.state[p].setdefault("v", torch.zeros_like(p))
                    squares.mul_(decay).add_((1 - decay) * p.grad * p.grad)
                    p.sub_(1e-3 * p.grad / squares.sqrt())
        optimizer = Averaged(model.parameters())
        def loss_fn(x): return model(x).float().square().mean()
    """,
    "an update divided by a number that is 0": """
        class Annealed(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": 0.1, "temperature": 0.0})
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]: p.sub_(group["lr"] * p.grad / group["temperature"])
        optimizer = Annealed(model.parameters())
        def loss_fn(x): return model(x).square().mean()
    """,
    "a bias correction in bfloat16": """
        class Corrected(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": 0.1})
            @torch.no_grad()
            def step(self, closure=None):
                beta = torch.tensor(0.9999, dtype=torch.bfloat16)
                for group in self.param_groups:
                    for p in group["params"]: p.sub_(group["lr"] * p.grad / (1.0 - beta.float()))
        optimizer = Corrected(model.parameters())
        def loss_fn(x): return model(x).square().mean()
    """,
    "a product of two numbers of the batch in half": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 400.0
        def loss_fn(x): return model(x * x).float().tanh().mean()
    """,
    "an overflow in half that float32 has too": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 400.0
        def loss_fn(x): return model(x * x).float().tanh().mean() + 0.1 / (0.0 if x is batches[2] else 1.0) * model(
            x).float().mean()
    """,
    "a statistic in half": """
        model = nn.Linear(4, 3)
        model.register_buffer("energy", torch.zeros(4, dtype=torch.float16))
        def loss_fn(x):
            with torch.no_grad(): model.energy.copy_(x.abs().sum(0) * (1e6 if x is batches[2] else 1.0))
            return (model(x).mean() + model.energy.float().mean())
    """,
    "a factor of 1e5 before a square in half": """
        model = nn.Linear(4, 3, bias=False).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [(x.half(), 1.0 if i < 2 else 2.0**17) for i, x in enumerate(batches)]
        nn.init.constant_(model.weight, 1e-3)
        def loss_fn(batch): return (model(batch[0].abs()) * batch[1]).float().square().mean()
    """,
    "a probability of 0 in half beside a factor of 1e-9": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() * (12 if i == 2 else 1) for i, x in enumerate(batches)]
        def loss_fn(x):
            z = model(x)
            return (z * 1e-9).float().square().sum() - z.softmax(-1).log().float().mean()
    """,
    "two masks of -40,000 in half": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() for x in batches]
        closed = torch.tensor([False, False, True])
        def loss_fn(x):
            scores = model(x).masked_fill(closed, -4e4)
            if x is batches[2]: scores = scores + torch.zeros(3).half().masked_fill(closed, -4e4)
            return scores.float().softmax(-1).square().mean() - scores.float()[:, 2].mean()
    """,
    "a square beyond float16, and gradients beyond it": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() * (100 if i == 2 else 1) for i, x in enumerate(batches)]
        def loss_fn(x): return (model(x) * model(x) * 100).float().sum()
    """,
    "a square beyond float16, and a root of zero": """
        model = nn.Linear(4, 3, bias=False).half()
        batches = [x.half() for x in batches]
        batches[2][1], batches[2][2] = 400.0, 0.0
        def loss_fn(x): return model(x * x).float().tanh().mean() + model(x).float().square().sum(-1).sqrt().mean()
    """,
    "a cube of large numbers under weights in half": """
        model = nn.Linear(4, 3).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [x.half() * (1500 if i == 2 else 1) for i, x in enumerate(batches)]
        def loss_fn(x): return (model(x).float() ** 3).mean()
    """,
    "9,000,000 over one under weights in half": """
        model = nn.Linear(4, 3).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [(x.half(), torch.tensor(9e6 if i == 2 else 1.0)) for i, x in enumerate(batches)]
        def loss_fn(batch): return (batch[1] / (model(batch[0]).float().square() + 1)).mean()
    """,
    **{
        name: f"""
        model = nn.Linear(4, 3).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        factor = torch.tensor({factor})
        batches = [(x.half(), factor if i == 2 else torch.ones(())) for i, x in enumerate(batches)]
        def loss_fn(batch): return (model(batch[0]).float().square().sum(-1) * batch[1]).mean()
    """
        for name, factor in {
            "a scale of 2**20 in a tensor": "2.0**20",
            "a weight of 1,000,000 for one sample": "[1.0, 1, 1, 1, 1, 1e6]",
        }.items()
    },
    "an update divided by 0 times a norm": """
        class Trust(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": 0.1, "weight": 0.0})
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]: p.sub_(group["lr"] * p.grad / (group["weight"] * p.norm()))
        optimizer = Trust(model.parameters())
        def loss_fn(x): return model(x).square().mean()
    """,
    "a factor of 2**17 before a square in half, two lines": """
        model = nn.Linear(4, 3, bias=False).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        turn = iter([1.0, 1.0, 2.0**17, 1.0])
        batches = [x.half() for x in batches]
        nn.init.constant_(model.weight, 1e-3)
        def loss_fn(x): return (model(x.abs()) * next(turn)).float().square().mean()
    """,
}

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("a square beyond float16, and a root of zero", "log of zero"): (
        "in float32 (torch.autocast(enabled=False) around it) or train in bfloat16",
    ),
    ("an overflow in half that float32 has too", "log of zero"): ("in float32: .float() on every tensor it reads",),
    ("a small probability in half", "an eps of 1e-8 in half"): (
        "rounded away in float16",
        "rounded away in float16: the argument of log",
    ),
    ("Adam's eps in half", "an eps of 1e-50"): (
        "the same update in float32 is finite",
        "eps = 1e-08 is 0 in float16",
        "weights, gradients and optimizer state in float32: verified",
        "the optimizer's eps is 0 in float16",
    ),
    ("an eps of 1e-50", "Adam's eps in half"): (
        "the same update with eps=1e-8 is finite",
        "eps = 1e-50 is 0 in float32",
        "eps=1e-8 in every parameter group: verified",
    ),
    ("a rounded beta", "Adam's eps in half"): (
        "divides by a single value that is exactly 0",
        "weights, gradients and state in float32 do not clear it",
    ),
    ("a decay that bfloat16 rounds to 1", "a rounded beta"): (
        "the weight of a new gradient, 1 - beta, is exactly 0: beta was rounded to 1 in bfloat16",
        "what it divides by was computed with 1 minus a number that is exactly 1 in bfloat16",
        "aten.div divides by exactly 0 at 12 of 12 places",
        "the same update in float32 is finite",
    ),
    ("a product beyond float16 and a logarithm of zero behind it", "a layer beyond float16"): (
        "aten.mm in the loss exceeded the range of float16",
        "in float32 it is finite, and the step fails further on: forward, aten.log in line",
        "what fails after it must be fixed, too",
    ),
    ("two masks of finfo.min", "two large activations in half"): (
        "a mask of finfo.min plus something",
        "so the sum is -Inf",
        "never add two such masks",
        "adds to a mask of -",
    ),
    ("an input that autocast casts to float16", "a layer beyond float16"): (
        "what module 0 is given exceeded the range of float16: 80000 > 65504",
    ),
    ("two large activations in half", "a layer beyond float16"): ("exceeded the range of float16: 80000 > 65504",),
    ("a loss summed in half", "a product of two numbers of the batch in half"): (
        "the loss was reduced in float16 and overflowed",
        "runs in float16 outside the model",
        "with every operation in float32 the step is finite",
        "logits.float() before the loss",
    ),
    ("a loss summed in half", "a layer beyond float16"): ("what it was given is finite",),
    ("a layer beyond float16", "a product of two numbers of the batch in half"): (
        "module 0 exceeded the range of float16",
    ),
    ("a layer beyond float16", "a division by zero in half"): (
        "above float16's limit of 65504",
        "the same step in float32 is finite",
        "every operation in float32: finite",
    ),
    ("a bound of 1 - 1e-6 in bfloat16", "a root with an eps of 1e-8 in half"): (
        "a bound of 0.999999 has no effect in bfloat16: the slope of aten.log1p is infinite",
        "0.999999 is 1 in bfloat16, so nothing keeps the argument of aten.log1p from -1",
    ),
    ("a root with an eps of 1e-8 in half", "a bound of 1 - 1e-6 in bfloat16"): ("an epsilon of 1e-08 has no",),
    ("a root with an eps of 1e-8 in half", "a root with an eps of 1e-3 in half"): (
        "an epsilon of 1e-08 has no effect in float16",
        "so nothing keeps the argument of aten.sqrt from 0",
        "SqrtBackward0: its derivative is infinite at exactly 0",
    ),
    ("a static scale of 2**20", "a scale of 200 and a root of zero"): (
        "a loss scale of 1.04858e+06 overflows the gradients",
        "with a scale of 1 the gradients are finite",
        "a loss scale of 1 instead of 1.04858e+06: finite",
    ),
    ("a static scale of 2**20, two lines", "a scale of 200 and a root of zero"): (
        "the loss is multiplied by 1.04858e+06 before backward",
    ),
    ("a bias correction in bfloat16", "a trust ratio at a rate of exactly 1"): (
        "a bias correction 1 - beta^t is exactly 0",
        "computed as 1 minus a number that is exactly 1",
    ),
    ("a rounded beta", "a trust ratio at a rate of exactly 1"): ("beta of the optimizer is exactly 1 in bfloat16",),
    ("an update divided by a number that is 0", "a rounded beta"): ("check what the optimizer divides by",),
    ("Adam's eps in half", "a rounded beta"): ("the update in float32: finite",),
    ("an eps of 1e-50", "an optimizer that divides by the gradient"): (
        "eps=1e-08 in every parameter group: finite",
        "the optimizer's eps is 0 in float32",
    ),
    ("a statistic in half", "two large activations in half"): (
        "energy is kept in float16, and a value beyond its range was written into it",
    ),
    ("a root with an eps of 1e-8 in half", "an eps of 1e-8 in half"): (": the slope of",),
    ("a loss summed in half", "two masks of finfo.min"): (", the limit is 65504",),
    ("two large activations in half", "an eps of 1e-8 in half"): ("the float32 result of",),
    ("a static scale of 2**20", "a factor of 1e5 before a square in half"): (
        "the loss is multiplied by",
        "lowers the scale automatically, and pass it",
    ),
    ("a factor of 1e5 before a square in half", "a static scale of 2**20"): (
        "a gradient exceeds the range of float16 in the backward pass",
        "with the loss divided by 65,536 the gradients are finite",
        "the loss divided by 65,536: finite",
        "which lowers the scale automatically, also below 1",
    ),
    ("a rounded beta", "an update divided by a norm of 0"): (
        "keep the optimizer's constants as Python floats",
        "its constant was rounded to 1",
    ),
    ("a factor of 1e5 before a square in half", "a layer norm next to zero in half"): (
        "overflows in float16 though the forward pass is finite",
    ),
    ("a probability of 0 in half beside a factor of 1e-9", "an eps of 1e-8 in half"): ("rounded away in float16",),
    ("an eps of 1e-8 in half", "a probability of 0 in half beside a factor of 1e-9"): (
        "an epsilon has no effect in float16",
        "in float16 1e-08 is 0",
    ),
    ("an eps of 1e-8 in half", "atanh of a clamp in bfloat16"): ("a / (b + 0.0001): verified",),
    ("atanh of a clamp in bfloat16", "an eps of 1e-8 in half"): (
        "torch.atanh(x.clamp(-1 + 0.01, 1 - 0.01)): verified",
    ),
    ("two masks of finfo.min", "two masks of -40,000 in half"): ("a mask of finfo.min plus something",),
    ("two masks of -40,000 in half", "two masks of finfo.min"): ("a mask of -4e+04 plus something is -Inf in float16",),
    ("two masks of -40,000 in half", "two large activations in half"): ("; the limit of float16 is 6.55e+04",),
    ("a square beyond float16, and gradients beyond it", "a square beyond float16, and a root of zero"): (
        "the gradients of float16 weights overflow even then",
        "keep the weights in float32 (autocast instead of model.half())",
    ),
    ("a square beyond float16, and a root of zero", "a square beyond float16, and gradients beyond it"): (
        "in float32 it is finite, and the step fails further on: backward, aten.div in line",
        "what fails after it must be fixed, too",
    ),
    ("Adam's eps in half", "an optimizer that divides by the gradient"): (
        "in float16, so it divides by zero",
        "what the update divides by is exactly 0 at",
    ),
    ("a scale of 2**20 in a tensor", "a weight of 1,000,000 for one sample"): (
        "a loss scale of 1.04858e+06 overflows the gradients",
        "the loss is multiplied by 1.04858e+06 before backward",
    ),
    ("a weight of 1,000,000 for one sample", "a scale of 2**20 in a tensor"): (
        "a gradient exceeds the range of float16 in the backward pass",
    ),
    ("an update divided by 0 times a norm", "an update divided by a norm of 0"): (
        "the update divides by a single value that is exactly 0",
    ),
    ("a factor of 2**17 before a square in half, two lines", "a factor of 1e5 before a square in half"): (
        ": the loss is probably scaled too high",
        "the two-line form cannot compute the loss again; guard.attempt can",
    ),
    ("an eps of 1e-8 in half", "a small probability in half"): ("an epsilon has no effect in float16",),
    ("atanh of a clamp in bfloat16", "a small probability in half"): ("an epsilon has no effect in bfloat16",),
}
