"""Sentences of logarithms of zero, divisions by zero, deviations of one element and arguments outside a domain
(NT201, NT202, NT206, NT208).
"""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "sure of a far input": """
        batches[4] *= 1e3
        def loss_fn(x): return -model(x).softmax(-1).log().mean()
    """,
    "sure of the second input": """
        batches[1] *= 1e3
        def loss_fn(x): return -model(x).softmax(-1).log().mean()
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
    "std of one": """
        batches = [torch.randn(n, 4, generator=draw) for n in (6, 6, 1)]
        def loss_fn(x): return (model(x).sum(-1) / (1 + x.sum(-1).std())).mean()
    """,
    "log of zero": """
        batches[2] *= 1e3
        def loss_fn(x): return -model(x).softmax(-1).log().mean()
    """,
    "a negative running variance": """
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
        def loss_fn(x):
            statistics = torch.tensor([1.0, -0.5, 1.0]) if x is batches[2] else torch.ones(3)
            y = torch.nn.functional.batch_norm(model[0](x), torch.zeros(3), statistics)
            return y.square().mean()
    """,
    "logit of one": """
        batches[2] = batches[2] * 0 + 1
        batches = [x.sigmoid() if i != 2 else x for i, x in enumerate(batches)]
        def loss_fn(x): return model(torch.logit(x)).square().mean()
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
    "a loop that divides its batch, two lines": """
        seen = []
        def loss_fn(x):
            seen.append(1)
            given = x / (0.0 if len(seen) == 3 else 1.0)
            given = given - given
            return model(given).square().mean()
    """,
    "targets a little outside, and a log of zero": """
        batches = [(x, torch.rand(6, 3, generator=draw) * 1.04 - 0.02) for x in batches]
        def loss_fn(batch):
            x, y = batch
            z = model(x)
            extra = (x[:, 0] * (0.0 if batch is batches[3] else 1.0)).abs().log().mean()
            return F.binary_cross_entropy_with_logits(z, y) + 0 * z.mean() + extra
    """,
    "a temperature of 0": """
        batches = [(x, 0.0 if i == 2 else 1.0) for i, x in enumerate(batches)]
        def loss_fn(batch): return (model(batch[0]) / batch[1]).softmax(-1).square().mean()
    """,
    "a temperature that a tensor holds": """
        batches = [(x, torch.full((6, 1), 0.0 if i == 2 else 1.0)) for i, x in enumerate(batches)]
        def loss_fn(batch): return (model(batch[0]) / batch[1]).softmax(-1).square().mean()
    """,
    "two lengths of 0, two lines": """
        model = nn.Linear(4, 3, bias=False)
        batches[3] = batches[3] * 0
        def loss_fn(x):
            z = model(x)
            return z.abs().max() / z.detach().abs().max()
    """,
    "log of a sigmoid": """
        batches[2] *= 1e3
        def loss_fn(x): return -model(x).sigmoid().log().mean()
    """,
    "a division by zero in half": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 0.0
        def loss_fn(x): return model(x / x.norm(dim=-1, keepdim=True)).float().square().mean()
    """,
    "a trust ratio at a rate of exactly 1": """
        class Trust(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": torch.tensor(1.0)})
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]: p.sub_(group["lr"] * p.grad / p.norm())
        optimizer = Trust(model.parameters())
        nn.init.zeros_(model.bias)
        def loss_fn(x): return model(x).square().mean()
    """,
    "a root of the weights in the update": """
        class Root(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": 1e-3})
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]: p.sub_(group["lr"] * p.grad * p.sqrt())
        optimizer = Root(model.parameters())
        def loss_fn(x): return model(x).square().mean()
    """,
    "a rate raised for good reason, and a bad sample": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        batches = [(i, torch.randn(6, 4, generator=draw)) for i in range(9)]
        batches[8][1][2, 1] = -5.0
        def loss_fn(batch):
            optimizer.param_groups[0]["lr"] = 1e-4 if batch[0] >= 6 else 1e-6
            return (model((batch[1] + 4.5).sqrt()) - 1).square().mean()
    """,
    "a large table and a log of zero at the first step": """
        model = nn.Linear(4, 3)
        nn.init.constant_(model.weight, 9.0)
        batches[0][1] = 0.0
        def loss_fn(x): return (model(x) * (x.abs().sum(-1, keepdim=True)).log()).mean()
    """,
    "several steps at a rate that is too high, then a bad sample": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.5)
        batches = [torch.randn(6, 4, generator=draw) for _ in range(9)]
        batches[8][2, 1] = -5.0
        def loss_fn(x): return (model((x + 4.5).sqrt()) - 1).square().mean()
    """,
    "a denominator whose quotient goes into a log": """
        batches[2][1] = 0.0
        def loss_fn(x): return (model(x).square() / x.abs().sum(-1, keepdim=True)).log().mean()
    """,
    "a different failure each time": """
        turn = iter(range(99))
        def loss_fn(x):
            n = next(turn)
            z = model(x)
            if n < 2: return z.square().mean()
            return (z * (z.detach() - z.detach())).log().mean() if n % 2 else z.square().mean() * nan
    """,
    "a call that is written in another form": """
        batches[2] *= 1e3
        log = torch.log
        def loss_fn(x): return -sum(map(torch.Tensor.log, [model(x).softmax(-1)])).mean()
    """,
    "a batch of one divided by its std": """
        batches = [batches[0], batches[1], batches[2][:1]]
        def loss_fn(x):
            y = model(x)
            return ((y - y.mean(0)) / y.std(0) * y).mean()
    """,
    "a rate that jumps in the step that fails, two lines": """
        batches = [*batches[:3], batches[0] * 0.0]
        def loss_fn(x):
            if x is batches[3]: optimizer.param_groups[0]["lr"] *= 50
            return (model(x).square().sum(-1) / x.abs().sum(-1)).mean()
    """,
    "variance of one": """
        batches = [torch.randn(n, 4, generator=draw) for n in (6, 6, 1)]
        def loss_fn(x): return (model(x).sum(-1) / (1 + x.sum(-1).var())).mean()
    """,
    "a weight norm of zeros": """
        model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        with torch.no_grad(): model.parametrizations.weight.original1[1] = 0.0
        def loss_fn(x): return model(x).square().mean()
    """,
    "a layer norm without an eps": """
        model = nn.Sequential(nn.LayerNorm(4, eps=0.0), nn.Linear(4, 3))
        batches[2][1] = 0.5
        def loss_fn(x): return model(x).square().mean()
    """,
    "the determinant of zeros": """
        model = nn.Linear(4, 9, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x): return -torch.linalg.slogdet(model(x).view(-1, 3, 3))[1].mean()
    """,
    "a root of zero that is differentiated twice, two lines": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 0.0
        counts = iter(range(99))  # what is taken from it cannot be taken again
        def loss_fn(x):
            next(counts)
            x = x.clone().requires_grad_()
            out = model(x).square().sum(-1).sqrt().sum()
            (slope,) = torch.autograd.grad(out, x, create_graph=True)
            return out / 6 + slope.square().sum()
    """,
    "a logarithm that a floor does not help": """
        def loss_fn(x):
            p = x.abs().sum(-1) * (0.0 if x is batches[2] else 1.0)
            return (1 / (1 / (p.log().abs() + 1) * p)).mean() * model(x).mean()
    """,
    "logit beyond one": """
        def loss_fn(x): return (model(x) * 0 + (1.5 if x is batches[2] else 0.5)).logit().mean()
    """,
}

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("a layer norm without an eps", "log of zero"): ("give the layer an eps: eps=1e-5",),
    ("an inverse of a singular matrix", "division by zero"): ("lstsq or pinv, which are defined for such matrices",),
    ("std of one", "log of zero"): ("drop_last=True in the DataLoader, where it is a batch of one sample",),
    ("std of one", "division by zero"): (
        "an unbiased standard deviation over one element is 0/0",
        "with a deviation that is 0 for one element the step is finite",
        "each group holds 1 element",
    ),
    ("root of a negative number", "log of zero"): (
        "with the argument kept inside the domain the step is finite",
        "outside its domain",
    ),
    ("targets a little outside, and a log of zero", "negative targets of a divergence"): (
        "the logarithm of zero gave -Inf",
    ),
    ("a temperature of 0", "a temperature that a tensor holds"): (
        "divides by a plain number that is exactly 0",
        "a division by the constant 0",
        "the constant must not become 0",
    ),
    ("a temperature that a tensor holds", "a temperature of 0"): (
        "the denominator is exactly 0 at 6 of 6 places",
        "with nantrap.ops.safe_divide(a, b) in line 15 the step is finite",
    ),
    ("a denominator whose quotient goes into a log", "a temperature that a tensor holds"): (
        "not enough: nantrap.ops.safe_divide(a, b)",
        "nantrap.ops.safe_divide(a, b) in line 15: not finite",
        "a / b.clamp(min=0.003) and torch.log(x.clamp(min=1e-05)) in line 15: finite",
    ),
    ("a weight norm of zeros", "a weight norm whose length is Inf"): (
        "a weight norm divides by the length",
        "1 of 3 rows of v is exactly 0",
        "do not set a weight-normed layer to zeros",
    ),
    ("a division by zero in half", "an eps of 1e-8 in half"): (
        "a division by exactly zero",
        "the step is as bad in float32",
    ),
    ("two lengths of 0, two lines", "a mask that selects nothing, two lines"): ("made by aten.max",),
    ("log of a sigmoid", "log of zero"): (
        "with logsigmoid(x) instead of log(sigmoid(x)) in line 15 the step is finite",
        "not tried: binary_cross_entropy_with_logits",
    ),
    ("log of zero", "log of a sigmoid"): ("log_softmax(x) instead of log(softmax(x)) in line 15: verified",),
    ("a negative running variance", "log of zero"): (
        "the root of a negative running variance was taken in",
        "the running variance and eps are below 0 at 1 of 3 places, down to -0.5",
        "look what wrote the running variance (a checkpoint, an average, a difference of weights); start from one that",
    ),
    ("a root of the weights in the update", "a rounded beta"): ("for which it is not defined, in the update",),
    ("a rate raised for good reason, and a bad sample", "a rate that a schedule raises"): (
        "the learning rate before the jump does not help",
    ),
    ("a large table and a log of zero at the first step", "weights far too large"): (
        "the step stays bad with rescaled weights",
    ),
    ("a different failure each time", "log of zero"): (
        "no trial counts: the unchanged step fails in another way",
        "measured in a replay that did not fail as the step did",
        "the replay differs: the loss was nan and is -inf in the replay",
        "not run: the unchanged step fails in another way",
    ),
    ("a different failure each time", "a batch written in place"): (
        "it reads what cannot be restored: turn (range_iterator)",
    ),
    ("a division by zero in half", "a layer beyond float16"): ("every operation in float32: not finite",),
    ("division by zero", "log of zero"): ("; blank or constant inputs are the usual reason",),
    ("an update divided by a norm of 0", "Adam's eps in half"): ("of something, which is exactly 0",),
    ("a batch written in place", "one sample alone"): (
        "so the replay does not begin with the same values",
        "changed the batch in place",
    ),
    ("a batch of one divided by its std", "std of one"): (
        "with a deviation that is 1e-05 for one element the step is finite",
        "nantrap.ops.safe_std(x) + 1e-05: verified",
    ),
    ("std of one", "std of nothing"): (
        "an unbiased standard deviation over one element",
        "with a deviation that is 0 for one element the step is finite",
    ),
    ("variance of one", "std of one"): (
        "an unbiased variance over one element is 0/0",
        "with a variance that is 0 for one element the step is finite",
        "nantrap.ops.safe_var(x): verified",
    ),
    ("a layer norm without an eps", "division by zero"): (
        "a normalisation divides by a deviation of exactly zero in module 0",
        "the variance is 0 in 1 of 6 groups, and its eps does not keep the root from 0",
        "with an eps of 1e-5 the step is finite",
        "eps=1e-05 in line",
    ),
    ("a weight norm of zeros", "division by zero"): (
        "a weight norm divides by the length of a direction that is all zeros",
        "1 of 3 rows of v is exactly 0",
    ),
    ("division by zero", "a layer norm without an eps"): (
        "not tried: an eps in the denominator",
        "1 of 6 places (row 1), made by aten.std",
    ),
    ("a hand-written backward divides by zero", "division by zero"): (
        "in the backward of AbsBackward, written by hand",
    ),
    ("a root of zero that is differentiated twice, two lines", "division by zero, two lines"): (
        "that no line of it shows, such as one in a derivative",
        "with create_graph=True, look for a sqrt, a norm or a power at exactly 0",
    ),
    ("an update divided by a norm of 0", "a rounded beta"): (
        "add an eps to what the optimizer divides by",
        "the update divides by the norm of something",
    ),
    ("the determinant of zeros", "log of zero"): (
        "the log-determinant of a singular matrix is -Inf in",
        "the determinant is exactly 0 for 1 of 6 matrices",
        "with 0.001 added on the diagonal the step is finite",
        "torch.linalg.slogdet(x + 0.001 * torch.eye(x.shape[-1]).to(x)) in line",
        "not tried: an LU form whose diagonal is an exp",
    ),
    ("logit of one", "log of zero"): (
        "torch.logit(x.clamp(1e-06, 1 - 1e-06)) in line",
        "torch.logit(x.clamp(1e-06, 1 - 1e-06)): verified",
        "was given exactly 1",
    ),
    ("log of zero", "logit of one"): (
        "not tried: nantrap.ops.safe_log(x)",
        "the logarithm of zero gave -Inf",
    ),
    ("targets a little outside, and a log of zero", "log of zero"): ("nantrap.ops.safe_log(x): verified",),
    ("root of a negative number", "a cosine rounded beyond 1"): ("torch.sqrt(x.clamp(min=1e-12)): verified",),
    ("an update divided by a norm of 0", "an update divided by 0 times a norm"): (
        "the update divides by the norm of something, which is exactly 0",
    ),
    ("a logarithm that a floor does not help", "targets a little outside, and a log of zero"): (
        "an argument that is kept from 0 where it is made; not enough: nantrap.ops.safe_log(x)",
    ),
    ("logit beyond one", "root of a negative number"): ("torch.logit(x.clamp(1e-06, 1 - 1e-06)): verified",),
    ("sure of a far input", "sure of the second input"): ("the batch is far outside its usual range",),
    ("closed gates over their sum", "a mean of nothing"): ("a division by exactly zero",),
    ("division by zero", "root of minus infinity"): ("; every input is finite",),
    ("a hand-written backward divides by zero", "root of zero"): ("written by hand",),
}
