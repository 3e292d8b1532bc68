"""Tiny failing programs for `test_sentences`: what a sentence is true of, and next to it what it is false of.

Each is a body: `model`, `optimizer` and `batches` have the defaults of `PRELUDE` unless the body sets them.
"""

from __future__ import annotations

PRELUDE = """
import copy, functools, io
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
model = nn.Linear(4, 3)
batches = [torch.randn(6, 4, generator=draw) for _ in range(6)]
nan, inf = float("nan"), float("inf")
"""
POSTLUDE = """
optimizer = globals().get("optimizer") or torch.optim.SGD(model.parameters(), lr=1e-3)
"""

PROGRAMS: dict[str, str] = {
    # ---- the batch
    "nan in the batch": """
        batches[2][1, 0] = nan
        def loss_fn(x): return model(x).square().mean()
    """,
    "nan in a cached table": """
        @functools.lru_cache(None)
        def table(key): return 1.0 / torch.arange(key, key + 3.0)
        def loss_fn(batch): return (model(batch[0]) * table(batch[1])).square().mean()
        batches = [(x, float(2 - i)) for i, x in enumerate(batches[:3])]
    """,
    "one value of 1e25": """
        batches[3][2, 1] = 1e25
        def loss_fn(x): return model(x).square().mean()
    """,
    "a batch times 1e20": """
        batches[3] *= 1e20
        def loss_fn(x): return model(x).square().mean()
    """,
    "ages in days": """
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 0.02), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [torch.rand(6, 4, generator=draw) * (20 * 365 if i == 4 else 20) for i in range(5)]
        def loss_fn(x): return model(x).exp().mean()
    """,
    "an outlier within the scale": """
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 2.0), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [torch.rand(6, 4, generator=draw) * (20 if i == 4 else 2) for i in range(5)]
        def loss_fn(x): return model(x).exp().mean()
    """,
    "sure of a far input": """
        batches[4] *= 1e3
        def loss_fn(x): return -model(x).softmax(-1).log().mean()
    """,
    "sure of the second input": """
        batches[1] *= 1e3
        def loss_fn(x): return -model(x).softmax(-1).log().mean()
    """,
    "percent for shares": """
        batches = [(x, torch.rand(6, 3, generator=draw)) for x in batches]
        batches[4] = (batches[4][0], (batches[4][1] * 100).round())
        def loss_fn(batch):
            a = F.softplus(model(batch[0])) + 0.1
            return -torch.distributions.Beta(a, a, validate_args=False).log_prob(batch[1].clamp(min=0.01)).mean()
    """,
    # ---- labels
    "masks of 255": """
        model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [(x, 255.0 * (x[:, :1] > 0.5)) for x in [torch.rand(16, 4, generator=draw) for _ in range(40)]]
        def loss_fn(batch): return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])
    """,
    "counts up to 5, and a likelihood below zero": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [(x, torch.tensor([[5.0]])) for x in [torch.randn(6, 4, generator=draw) for _ in range(60)]]
        scale = nn.Parameter(torch.zeros(()))
        model.scale = scale
        optimizer = torch.optim.SGD([scale], lr=30.0)
        def loss_fn(batch): return model.scale * 3 - (-model.scale).exp() * 0
    """,
    # ---- reductions
    "every label ignored": """
        batches = [(x, torch.full((6,), -100) if i == 2 else torch.zeros(6).long()) for i, x in enumerate(batches)]
        def loss_fn(batch): return F.cross_entropy(model(batch[0]), batch[1])
    """,
    "class weights of 0": """
        batches = [(x, torch.full((6,), int(i == 2))) for i, x in enumerate(batches)]
        def loss_fn(batch): return F.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([1.0, 0.0, 1.0]))
    """,
    "a mask that selects nothing": """
        batches = [(x, torch.ones(6) * (i != 3)) for i, x in enumerate(batches)]
        def loss_fn(batch): return (model(batch[0]).sum(-1) * batch[1]).sum() / batch[1].sum()
    """,
    "a blank image over its sum": """
        batches = [x.abs() * (i != 3) for i, x in enumerate(batches)]
        def loss_fn(x): return model(x / x.sum()).square().mean()
    """,
    "closed gates over their sum": """
        batches[3] = -batches[3].abs() - 1
        batches = [x if i == 3 else x.abs() for i, x in enumerate(batches)]
        def loss_fn(x):
            gates = torch.relu(x)
            return model(gates / gates.sum(-1, keepdim=True)).square().mean()
    """,
    "a mean of nothing": """
        def loss_fn(x): return model(x).sum(-1)[x[:, 0] > (9 if x is batches[2] else -9)].mean()
    """,
    "a damaged file read in the step": """
        saved = copy.deepcopy(model.state_dict())
        saved["weight"][1, 2] = nan
        disk = io.BytesIO()
        torch.save(saved, disk)
        def loss_fn(x):
            if x is batches[3]:
                disk.seek(0)
                model.load_state_dict(torch.load(disk, weights_only=True))
            return model(x).square().mean()
    """,
    "std of one": """
        batches = [torch.randn(n, 4, generator=draw) for n in (6, 6, 1)]
        def loss_fn(x): return (model(x).sum(-1) / (1 + x.sum(-1).std())).mean()
    """,
    # ---- poles and domains
    "log of zero": """
        batches[2] *= 1e3
        def loss_fn(x): return -model(x).softmax(-1).log().mean()
    """,
    "logit of one": """
        batches[2] = batches[2] * 0 + 1
        batches = [x.sigmoid() if i != 2 else x for i, x in enumerate(batches)]
        def loss_fn(x): return model(torch.logit(x)).square().mean()
    """,
    "entropy of masked logits": """
        legal = torch.tensor([True, True, False])
        def loss_fn(x):
            log_p = model(x).masked_fill(~legal, -inf).log_softmax(-1)
            return (log_p.exp() * log_p).sum(-1).mean()
    """,
    "an overflow times zero": """
        batches[2] *= 1e4
        def loss_fn(x): return (model(x).exp() * 0.0).sum() + model(x).sum()
    """,
    "division by zero": """
        batches[2][1] = 0.5
        def loss_fn(x): return model((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)).square().mean()
    """,
    "root of minus infinity": """
        floor = torch.tensor([0.0, 0.0, -inf, 0.0])
        def loss_fn(x): return model((x.abs() + (floor if x is batches[2] else 0)).sqrt()).square().mean()
    """,
    "root of a negative number": """
        def loss_fn(x): return model((x.abs() - (1 if x is batches[2] else 0)).sqrt()).square().mean()
    """,
    "exp overflows": """
        batches = [x * (300 if i == 1 else 1) for i, x in enumerate(batches)]
        def loss_fn(x): return model(x).exp().mean()
    """,
    "cosh overflows": """
        batches = [x * (300 if i == 1 else 1) for i, x in enumerate(batches)]
        def loss_fn(x): return model(x).cosh().mean()
    """,
    # ---- loops
    "a recurrence": """
        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight).data.mul_(2.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [(x, rounds) for x, rounds in zip(batches, (3, 5, 200))]
        def loss_fn(batch):
            state, rounds = batch
            for _ in range(rounds): state = model(state)
            return (state / (1 + state.detach().abs().max())).square().mean()
    """,
    "a recurrence and a loss that grows": """
        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight).data.mul_(2.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
        batches = [(x, rounds) for x, rounds in zip(batches, (3, 5, 8, 12, 200))]
        def loss_fn(batch):
            state, rounds = batch
            for _ in range(rounds): state = model(state)
            return state.square().mean()
    """,
    "a recurrence that the updates made grow": """
        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, maximize=True)
        def loss_fn(x):
            state = x
            for _ in range(100): state = model(state)
            return state.square().mean()
    """,
    # ---- the backward pass
    "where after log": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x):
            energy = model(x).square()
            return torch.where(energy > 0, energy.log(), torch.zeros_like(energy)).mean()
    """,
    "root of zero": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x): return model(x).square().sum(-1).sqrt().mean()
    """,
    "the end of acos": """
        batches[2] *= 1e3
        def loss_fn(x): return torch.tanh(model(x)).acos().mean()
    """,
    "a hand-written backward divides by zero": """
        class Abs(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.abs()
            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return g * (x / x.abs())
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x): return Abs.apply(model(x)).mean()
    """,
    "qr of a zero column": """
        batches = [(x, torch.ones(3)) for x in batches]
        batches[2][1][1] = 0.0
        def loss_fn(batch): return torch.linalg.qr(model(batch[0]) * batch[1])[0].square().mul(torch.rand(6, 3)).sum()
    """,
    "svd of the identity": """
        model = nn.Linear(4, 9)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        target = torch.randn(6, 3, 3, generator=draw)
        def loss_fn(x):
            u, _, vh = torch.linalg.svd(torch.eye(3) + model(x).view(-1, 3, 3))
            return (u @ vh - target).square().mean()
    """,
    # ---- half precision
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
    # ---- the optimizer
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
    "an optimizer that divides by the gradient": """
        class Sign(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": 0.1, "eps": 1e-8})
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]: p.sub_(group["lr"] * (p.grad / p.grad.abs()))
        optimizer = Sign(model.parameters())
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
    "an update divided by a norm of 0": """
        class Trust(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": 0.1})
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]: p.sub_(group["lr"] * p.grad / p.norm())
        optimizer = Trust(model.parameters())
        nn.init.zeros_(model.bias)
        def loss_fn(x): return model(x).square().mean()
    """,
    "a rate too high": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
        batches = [torch.randn(6, 4, generator=draw) for _ in range(40)]
        def loss_fn(x): return (model(x) - 1).square().mean()
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
    "a rate that a schedule raises": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [(i, torch.randn(6, 4, generator=draw)) for i in range(60)]
        def loss_fn(batch):
            optimizer.param_groups[0]["lr"] = 50.0 if batch[0] >= 6 else 0.01
            return (model(batch[1]) - 1).square().mean()
    """,
    "nothing was learned for long": """
        batches = [torch.randn(6, 4, generator=draw) for _ in range(12)]
        batches[11][0] = nan
        def loss_fn(x): return (model(x).detach() + 0 * model.weight.sum()).square().mean()
    """,
    # ---- the state
    "weights bad from the start": """
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
        model.weight.data[1, 2] = nan
        def loss_fn(x): return model(x).square().mean()
    """,
    "a row copied in the step": """
        def loss_fn(x):
            if x is batches[3]:
                with torch.no_grad(): model.weight[1].copy_(torch.full((4,), nan))
            return model(x).square().mean()
    """,
    "a row written past PyTorch in the step": """
        def loss_fn(x):
            if x is batches[3]: model.weight.detach().numpy()[1] = np.nan
            return model(x).square().mean()
    """,
    "a row written between two steps": """
        every = batches
        class Loader:
            def __iter__(self):
                for i, x in enumerate(every[:5]):
                    if i == 3: model.weight.data[1] = nan
                    yield x
        batches = Loader()
        def loss_fn(x): return model(x).square().mean()
    """,
    "a teacher written between two steps": """
        model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)])
        every = batches
        class Loader:
            def __iter__(self):
                for i, x in enumerate(every[:5]):
                    if i == 3: nn.init.constant_(model[1].weight, inf)
                    yield x
        batches = Loader()
        def loss_fn(x): return model[0](x).square().mean()
    """,
    "a running average that swallowed Inf": """
        class Average(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(4, 3)
                self.register_buffer("energy", torch.zeros(4))
            def forward(self, x):
                self.energy.mul_(0.9).add_(x.detach().square().mean(0) * 0.1)
                return self.lin(torch.tanh(x))
        model = Average()
        batches[2] *= 1e25
        def loss_fn(x): return model(x).square().mean()
    """,
    "a codebook replaced by 0/0": """
        class Codes(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin, self.calls = nn.Linear(4, 3), 0
                self.register_buffer("codes", torch.randn(5, 4))
            def forward(self, x):
                one = F.one_hot(torch.cdist(x, self.codes).argmin(-1), 5).float()
                if self.calls == 2: self.codes.copy_((one.t() @ x) / one.sum(0)[:, None])
                self.calls += 1
                return self.lin(x)
        model = Codes()
        batches = [x + 0.1 * i for i, x in enumerate(batches)]
        def loss_fn(x): return model(x).square().mean()
    """,
    # ---- what is said about samples and replays
    "two of the batch together": """
        batches[2][1], batches[2][4] = 1e19, -1e19
        def loss_fn(x):
            pairs = (model(x)[:, None] - model(x)[None, :]).square().sum(-1)
            return pairs.mean() + pairs.max().square()
    """,
    "one sample alone": """
        batches[2][4, 1] = -5.0
        batches = [x.clamp(min=-4) if i != 2 else x.abs().where(x != -5.0, x) for i, x in enumerate(batches)]
        def loss_fn(x): return model((x + 4).sqrt()).square().mean()
    """,
    "a batch written in place": """
        def loss_fn(x):
            x.sub_(1.0 if x is batches[2] else 0.0)
            return model(x.abs()).mean() + (x[0, 0] * 0 - (1.0 if x is batches[2] else -1.0)).sqrt()
    """,
    "fails once": """
        calls = []
        def loss_fn(x):
            calls.append(1)
            return model(x).square().mean() * (nan if len(calls) == 3 else 1.0)
    """,
}
