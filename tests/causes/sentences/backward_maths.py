"""Sentences of infinite slopes, branches that were not selected and degenerate matrices (NT3xx)."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
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
    "a cosine rounded beyond 1": """
        one = torch.tensor(1.0) + 2**-22
        def loss_fn(x):
            cosine = torch.tanh(model(x))
            return (cosine.where(x[:, :1] < (0.5 if x is batches[2] else 99), one)).acos().mean()
    """,
    "an angle of 1.0005": """
        def loss_fn(x):
            share = torch.tanh(model(x)) * 0.5
            return (share + (share * 0 + 1.0005 - share).detach() * (1.0 if x is batches[2] else 0.0)).acos().mean()
    """,
    "an inverse of a singular matrix": """
        model = nn.Linear(4, 9)
        batches = [(x, 0.0 if i == 2 else 1.0) for i, x in enumerate(batches)]
        def loss_fn(batch):
            x, last = batch
            matrix = model(x).view(-1, 3, 3) * torch.tensor([1.0, 1.0, last]) + last * 9 * torch.eye(3)
            return torch.linalg.inv_ex(matrix).inverse.square().mean()
    """,
    "where after a root of a negative number": """
        def loss_fn(x):
            z = model(x) - (0.0 if x is batches[2] else -9.0)
            return torch.where(z > 0, z.sqrt(), torch.zeros_like(z)).mean()
    """,
    "a root next to zero": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 1e-23
        def loss_fn(x): return (model(x).abs() * 1e-22).sqrt().sqrt().mean() * 1e12
    """,
    "a layer norm next to zero in half": """
        model = nn.Linear(4, 3)
        batches = [x * (1e-4 if i == 2 else 1.0) for i, x in enumerate(batches)]
        def loss_fn(x):
            h = model(x).half() * (1e-3 if x is batches[2] else 1.0)
            centred = h - h.mean(-1, keepdim=True)
            length = (centred.float().square().mean(-1, keepdim=True) + 1e-12).sqrt()
            return ((centred.float() / length) * torch.tensor([1.0, 3.0, -2.0])).square().mean() * 50
    """,
    "a root with an eps of 1e-3 in half": """
        model = nn.Linear(4, 3, bias=False).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 0.0
        def loss_fn(x): return (model(x).square().sum(-1) + 1e-3).sqrt().float().mean() + model(x).square().sum(
            -1).sqrt().float().mean()
    """,
    "a scale of 200 and a root of zero": """
        model = nn.Linear(4, 3, bias=False).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [x.half() for x in batches]
        batches[2][1] = 0.0
        def loss_fn(x): return model(x).float().square().sum(-1).sqrt().mean() * 200.0
    """,
    "acosh of one": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x): return (1 + model(x).square()).acosh().mean()
    """,
    "acos of a cosine below -1": """
        def loss_fn(x):
            cosine = model(x) * 0 - (1.0000001 if x is batches[2] else 0.5)
            return (cosine.acos() * model(x)).mean()
    """,
    "where after log1p": """
        model = nn.Linear(4, 3, bias=False)
        nn.init.zeros_(model.weight)
        batches[2][1] = -1.0
        def loss_fn(x):
            z = model(x) + x[:, :3].clamp(min=-1)
            return torch.where(z > -1, z.log1p(), 0.0).mean()
    """,
    "where after a root of negative numbers": """
        def loss_fn(x):
            z = model(x)
            return torch.where(z > 0, z.sqrt(), torch.zeros_like(z)).mean()
    """,
    "a product of p and log p under a mask": """
        model = nn.Linear(4, 3, bias=False)
        kept = torch.ones(6)
        def loss_fn(x):
            p = (model(x) * (2000.0 if x is batches[2] else 1.0)).softmax(-1)
            return (torch.xlogy(p, p).sum(-1) * kept).mean()
    """,
    "a selected entry whose gradient is 0": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 0.0
        pairs = torch.tensor([0, 1, 2])
        def loss_fn(x): return (1 - model(x).square().log()[pairs].exp()).square().mean()
    """,
    "a weight of 0 after a where that selects all": """
        model = nn.Linear(4, 3, bias=False)
        batches = [(x, torch.ones(6)) for x in batches]
        batches[2][0][1], batches[2][1][1] = 0.0, 0.0
        def loss_fn(batch):
            root = model(batch[0]).square().sum(-1).sqrt()
            kept = torch.where(batch[0].abs().sum(-1) > -1, root, torch.zeros_like(root))
            return (kept * batch[1]).mean()
    """,
    "a diagonal that an index leaves out": """
        row, column = torch.triu_indices(6, 6, offset=1)
        def loss_fn(x):
            z = model(x)
            distance = (z[:, None] - z[None]).square().sum(-1).sqrt()
            return distance[row, column].mean()
    """,
    **{
        f"the slope of {call} at zero": f"""
        model = nn.Linear(4, 2, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x):
            z = model(x)
            return {expression}.mean()
    """
        for call, expression in {
            "a power": "z.square().sum(-1).pow(0.5)",
            "hypot": "torch.hypot(z[:, 0], z[:, 1])",
            "a quotient": "torch.where(z.square().sum(-1) > 0, x.sum(-1) / z.square().sum(-1), 0.0)",
            "entr": "torch.special.entr(z.square())",
            "xlogy": "torch.xlogy(x[:, :2].abs(), z.square())",
            "a selected power": "torch.where(z.square() > 0, z.square() ** 0.25, 0.0)",
        }.items()
    },
    "a slope of log1p next to -1": """
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
        def loss_fn(x):
            z = model(x) * 0 + (-1 + 6e-8 if x is batches[2] else 0.0)
            return (z.log1p() * (1e33 if x is batches[2] else 1.0)).sum()
    """,
    "a mean over no position of a row that is left out": """
        batches = [(x, 3 if i != 2 else 0) for i, x in enumerate(batches)]
        def loss_fn(batch):
            x, longest = batch
            kept = (torch.arange(3) < torch.tensor([3, 3, 3, longest, 3, 3])[:, None]).float()
            row = (model(x) * kept).sum(-1) / kept.sum(-1)
            return torch.where(kept.sum(-1) > 0, row.square().sqrt(), 0.0).mean()
    """,
    "a mean over no position that is replaced by 0": """
        batches = [(x, 3 if i != 2 else 0) for i, x in enumerate(batches)]
        def loss_fn(batch):
            x, longest = batch
            kept = (torch.arange(3) < torch.tensor([3, 3, 3, longest, 3, 3])[:, None]).float()
            row = (model(x) * kept).sum(-1) / kept.sum(-1)
            return (row.nan_to_num(0.0) - 1).square().mean()
    """,
    "a row that cannot be run again, two lines": """
        batches = [(x, torch.ones(6) if i != 2 else torch.ones(6).index_fill(0, torch.tensor(3), 0.0))
                   for i, x in enumerate(batches)]
        counts = iter(range(99))
        def loss_fn(batch):
            next(counts)
            x, n = batch
            row = model(x).sum(-1) / n
            return torch.stack([each for each, count in zip(row, n) if count]).mean()
    """,
    "an inverse softplus that does not take its exponential": """
        model = nn.Linear(4, 1, bias=False)
        nn.init.constant_(model.weight, 0.25)
        batches = [x.abs() + 0.1 if i != 2 else torch.full((6, 4), 400.0) for i, x in enumerate(batches)]
        def loss_fn(x):
            y = model(x)
            return torch.where(y > 20, y, torch.log(torch.expm1(y))).mean()
    """,
    "an inverse softplus that takes its exponential": """
        model = nn.Linear(4, 1, bias=False)
        nn.init.constant_(model.weight, 0.25)
        batches = [x.abs() + 0.1 if i != 2 else torch.full((6, 4), 400.0) for i, x in enumerate(batches)]
        def loss_fn(x):
            y = model(x)
            return torch.where(y < -20, y, torch.log(torch.expm1(y))).mean()
    """,
    "forces of a norm that is zero": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x):
            x = x.clone().requires_grad_()
            (force,) = torch.autograd.grad(model(x).norm(dim=-1).sum(), x, create_graph=True)
            return force.square().sum()
    """,
    "a curvature of a power at zero": """
        model = nn.Linear(1, 3)
        batches = [torch.rand(6, 1, generator=draw) for _ in range(4)]
        batches[2][1] = 0.0
        def loss_fn(x):
            x = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(x ** 1.5).tanh().sum(), x, create_graph=True)
            (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
            return curvature.square().mean()
    """,
    "an inner step through a root of zero": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x):
            (slope,) = torch.autograd.grad(model(x).abs().sqrt().mean(), model.weight, create_graph=True)
            return F.linear(x, model.weight - 0.1 * slope).square().mean()
    """,
    "forces of an angle of zero": """
        model = nn.Linear(3, 1)
        batches = [torch.randn(6, 3, generator=draw) for _ in range(4)]
        batches[2][4] = torch.tensor([1.0, 0.0, 0.0])
        def loss_fn(x):
            x = x.clone().requires_grad_()
            angle = torch.acos(x[:, 0] / x.norm(dim=-1))
            (force,) = torch.autograd.grad(model(x).sum() + angle.sum() * model.weight.sum(), x, create_graph=True)
            return force.square().mean()
    """,
    "shares of a force that is zero": """
        model = nn.Linear(3, 3, bias=False)
        batches = [torch.randn(6, 3, generator=draw) for _ in range(2)] + [torch.zeros(6, 3)]
        def loss_fn(x):
            x = x.clone().requires_grad_()
            (force,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            return (force / force.sum(-1, keepdim=True)).square().sum()
    """,
}

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("a mean over no position of a row that is left out", "a mean over no position that is replaced by 0"): (
        "the branch of a / b that was not selected put NaN into the gradient",
        "gave 1 non-finite of 6 values, and the loss is finite",
        "the loss is the same with 0 and with 1 in their place: the program leaves them out",
        "a gradient of exactly 0 is multiplied by them in the backward pass, and 0 · Inf = NaN",
        "a / b.masked_fill(b == 0, 1.0)",
    ),
    ("a mean over no position that is replaced by 0", "a mean over no position of a row that is left out"): (
        "whose result was replaced afterwards",
        "the denominator is exactly 0 at 1 of 6 places, and the loss is finite",
        "what replaced the result does not replace its derivative, which is infinite there",
    ),
    ("a row that cannot be run again, two lines", "a mean over no position that is replaced by 0, two lines"): (
        "a / b gave Inf or NaN, and the loss is finite: it was left out afterwards, and its derivative was not",
        "what it divides by is exactly 0, where a / b is not finite either",
    ),
    ("an inverse softplus that does not take its exponential", "an inverse softplus that takes its exponential"): (
        "the branch of expm1 that was not selected put NaN into the gradient",
    ),
    ("forces of a norm that is zero", "root of zero"): ("the second derivative of norm is infinite at exactly zero",),
    ("forces of a norm that is zero, two lines", "root of zero, two lines"): (
        "the second derivative of norm is infinite at exactly zero",
    ),
    ("a curvature of a power at zero", "root of zero"): (
        "the second derivative of x ** a with a < 2 is infinite at exactly zero",
    ),
    ("an inner step through a root of zero, two lines", "forces of an angle of zero, two lines"): (
        "the derivative of sqrt is infinite at exactly zero",
        "nantrap.ops.safe_sqrt(x) in line",
    ),
    ("forces of an angle of zero, two lines", "shares of a force that is zero, two lines"): (
        "the derivative of acos is infinite at ±1",
        "nantrap.ops.safe_acos(x) in line",
    ),
    ("shares of a force that is zero", "forces of an angle of zero"): ("a division by exactly zero in the loss",),
    ("svd of the identity", "qr of a zero column"): (
        "the smallest gap in the spectrum is",
        "with a repeated or zero spectrum",
        "add a small diagonal jitter before decomposing",
        "differences of singular or eigen-values",
    ),
    ("qr of a zero column", "svd of the identity"): (
        "the smallest value on that diagonal is",
        "of a singular matrix is infinite",
        "the step draws random numbers, and a part of the batch",
        "add a small jitter before the factorisation",
        "and so divides by its diagonal",
    ),
    ("the end of acos", "root of zero"): (
        "is infinite at ±1",
        "x is exactly ±1",
    ),
    ("root of zero", "where after log"): ("not tried: an eps inside: sqrt(x + 1e-12)",),
    ("where after log", "root of zero"): (
        "the branch of log that was not selected put NaN into the gradient",
        "with an argument that is safe on both branches the step is finite",
        ", and also 0 where it leaves",
        "the local derivative of",
        "select before the operation, not after it: log(torch.where(ok, x, 1.0)), then torch.where on the result",
        "these places were not selected",
    ),
    ("a cosine rounded beyond 1", "an angle of 1.0005"): (
        "rounding moved it beyond ±1",
        "by 2.38e-07 at most",
    ),
    ("a cosine rounded beyond 1", "the end of acos"): (
        "kept within ±1 the step is finite",
        "was given values beyond ±1 at",
    ),
    ("an angle of 1.0005", "the end of acos"): ("acos was given 1.00049996, for which it is not defined",),
    ("an inverse of a singular matrix", "svd of the identity"): (
        "aten.linalg_inv_ex was given a singular matrix",
        "its smallest singular value is 0 of its largest",
        "with 0.001 added to its diagonal the step is finite",
        "not tried: lstsq or pinv",
        "torch.linalg.inv_ex(x + 0.001 * torch.eye(x.shape[-1]).to(x)) in line",
    ),
    ("where after a root of a negative number", "where after log"): (
        "and the loss is finite: dropped",
        "and 0 · NaN = NaN",
    ),
    ("where after log", "where after a root of a negative number"): ("and 0 · Inf = NaN",),
    ("a root next to zero", "root of zero"): (
        "leaves the range of the dtype next to zero",
        "what it divides by is as small as",
        "next to zero; what it divides by is as small as",
        "torch.sqrt(x.clamp(min=1e-05)) in line",
        "keep the argument of sqrt further from zero, by a floor or an eps inside such as 1e-05",
    ),
    ("root of zero", "a root next to zero"): (
        "what it divides by is 0 at 1 of 6 places",
        "nantrap.ops.safe_sqrt(x) in line",
    ),
    ("a layer norm next to zero in half", "a root with an eps of 1e-8 in half"): (
        "makes a gradient that float16 cannot hold",
        "was computed almost at 0",
    ),
    ("a layer norm next to zero in half", "a static scale of 2**20"): (
        "without that factor it fits",
        "with the argument kept further from zero the step is finite",
    ),
    ("a scale of 200 and a root of zero", "a static scale of 2**20"): ("a loss scale of 1 does not help",),
    ("svd of the identity", "root of zero"): ("of its largest value",),
    ("qr of a zero column", "root of zero"): ("of the largest",),
    ("root of zero", "the end of acos"): (
        ", changes nothing)",
        "is infinite at exactly zero",
    ),
    ("a cosine rounded beyond 1", "root of a negative number"): (
        "torch.acos(x.clamp(-1 + 1e-06, 1 - 1e-06)): verified",
    ),
    ("the end of acos", "a steep acos under a loss of 1e37"): (
        "the derivative of acos is infinite at ±1",
        "x is exactly ±1 at",
        "with a bounded slope the step is finite",
        "clamp to ±(1 - 1e-6) (before torch 2.15",
    ),
    ("acosh of one", "the end of acos"): (
        "the derivative of acosh is infinite at 1",
        "AcoshBackward0 computes 1/√(x² - 1), and x is exactly 1 at 3 of 18 places",
        "torch.acosh(x.clamp(min=1 + 1e-06)) in line",
        "torch.acosh(x.clamp(min=1 + 1e-06)): verified",
    ),
    ("the end of acos", "acosh of one"): (
        "computes 1/√(1 - x²)",
        "nantrap.ops.safe_acos",
    ),
    ("acos of a cosine below -1", "a cosine rounded beyond 1"): ("acos was given -1.00000012: rounding moved it",),
    ("where after log1p", "where after log"): (
        "the derivative of log1p is infinite at exactly -1",
        "the local derivative of log1p",
        "nantrap.ops.safe_log(1 + x)",
        "log1p(x.clamp(min=-1 + 1e-6))",
    ),
    ("where after log", "where after log1p"): (
        "is infinite at exactly zero",
        "an eps outside, log(x) + eps",
    ),
    ("where after log", "where after logit"): ("the derivative of log is infinite",),
    ("root of zero", "where after log1p"): ("an eps outside, sqrt(x) + eps",),
    ("where after a root of negative numbers", "where after log"): (
        "aten.sqrt gave NaN at",
        "sqrt(torch.where(ok, x, 1.0)), then torch.where on the result\n",
    ),
    ("a layer norm next to zero in half", "a factor of 1e5 before a square in half"): (
        " multiplies the gradient by up to ",
        "a larger eps for a / b in line",
        "an eps that float32 holds may still be too small",
    ),
    ("a layer norm next to zero in half", "a cube of large numbers under weights in half"): (
        "next to zero makes a gradient that float16 cannot hold",
        "was computed almost at 0",
    ),
    ("a layer norm next to zero in half", "9,000,000 over one under weights in half"): (
        "the slope of a / b next to zero",
        "a / b was computed almost at 0",
    ),
    ("a weight of 0 after a where that selects all", "where after log"): ("and also 0 where it leaves MulBackward0",),
    ("where after log", "a weight of 0 after a where that selects all"): ("and also 0 where it leaves WhereBackward0",),
    ("a weight of 0 after a where that selects all", "a product of p and log p under a mask"): (
        "and also 0 where it leaves MulBackward0",
    ),
    ("a product of p and log p under a mask", "where after log"): (
        "the derivative of x log y is infinite at exactly zero",
    ),
    ("a diagonal that an index leaves out", "a selected entry whose gradient is 0"): (
        "and also 0 where it leaves IndexBackward0: these places were not selected",
    ),
    ("a diagonal that an index leaves out", "a weight of 0 after a where that selects all"): (
        "and also 0 where it leaves IndexBackward0: these places were not selected",
    ),
    ("the slope of a power at zero", "root of zero"): (
        "the derivative of x ** a with a < 1 is infinite at exactly zero",
        "an eps inside: (x + 1e-12) ** a (an eps outside, x ** a + eps, changes nothing)",
    ),
    ("the slope of hypot at zero", "root of zero"): ("nantrap.ops.safe_sqrt(a * a + b * b) in line",),
    ("the slope of a quotient at zero", "root of zero"): (
        "an eps inside: a / (b + 1e-6) (an eps outside, a / b + eps, changes nothing)",
    ),
    ("the slope of entr at zero", "the slope of xlogy at zero"): ("-nantrap.ops.xlogx(x) in line",),
    ("the slope of xlogy at zero", "the slope of entr at zero"): ("a * nantrap.ops.safe_log(b) in line",),
    ("the slope of xlogy at zero", "root of zero"): ("an eps inside: log(x + 1e-12)",),
    ("the slope of a selected power at zero", "the slope of a power at zero"): (
        "the branch of x ** a with a < 1 that was not selected",
        "torch.where(ok, x, 1.0) ** a, then",
    ),
    ("a slope of log1p next to -1", "where after log1p"): (
        "the derivative of log1p leaves the range of the dtype next to -1",
        "torch.log1p(x.clamp(min=-1 + 1e-05)) in line",
    ),
}
