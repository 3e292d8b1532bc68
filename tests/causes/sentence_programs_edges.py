"""Programs next to those of `sentence_programs`: at the edge of what a sentence of theirs is true of."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    # ---- two faults in one batch
    "nan in sample 1 and an empty sample 4": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1, 0], batches[2][4] = nan, 0.0
        def loss_fn(x): return (model(x).square().sum(-1) / x.abs().sum(-1)).mean()
    """,
    "1e25 in sample 1 and an empty sample 4": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1, 0], batches[2][4] = 1e25, 0.0
        def loss_fn(x): return (model(x).square().sum(-1) / x.abs().sum(-1)).mean()
    """,
    "exp of sample 1 and a log of sample 4": """
        model = nn.Linear(4, 1, bias=False)
        nn.init.ones_(model.weight)
        batches[2][1], batches[2][4] = 100.0, -200.0
        def loss_fn(x):
            p = model(x).exp()
            return p.mean() + p.clamp(max=50).log().mean()
    """,
    "a masked row of sample 1 and an empty sample 4": """
        model = nn.Linear(4, 3, bias=False)
        batches = [(x, torch.zeros(6, 3)) for x in batches]
        batches[2][1][1], batches[2][0][4] = -inf, 0.0
        def loss_fn(batch):
            z = model(batch[0])
            return (z + batch[1]).softmax(-1).sum() + (z.abs().sum(-1) / batch[0].abs().sum(-1)).mean()
    """,
    # ---- labels and reductions
    "labels that are ignored or have a weight of 0": """
        batches = [(x, torch.tensor([1, 1, 1, -100, -100, -100]) * (i == 2)) for i, x in enumerate(batches)]
        def loss_fn(batch): return F.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([1.0, 0.0, 1.0]))
    """,
    "std of nothing": """
        def loss_fn(x): return model(x).sum(-1)[x[:, 0] > (9 if x is batches[2] else -9)].std() + model(x).mean()
    """,
    "variance of one": """
        batches = [torch.randn(n, 4, generator=draw) for n in (6, 6, 1)]
        def loss_fn(x): return (model(x).sum(-1) / (1 + x.sum(-1).var())).mean()
    """,
    # ---- the range
    "sinh of 90": """
        def loss_fn(x): return (model(x) * 0 + (90.0 if x is batches[2] else 1.0)).sinh().sum()
    """,
    "a product of nine factors in each row": """
        def loss_fn(x):
            factor = model(x).sum(-1, keepdim=True) * 0 + (1e5 if x is batches[2] else 1.0)
            return factor.expand(6, 9).prod(-1).mean()
    """,
    "a product of fifty-four factors": """
        def loss_fn(x):
            factor = model(x).sum(-1, keepdim=True) * 0 + (1e5 if x is batches[2] else 1.0)
            return factor.expand(6, 9).prod()
    """,
    "a power of -2": """
        powers = torch.tensor([1.0, 129.0, 3.0])
        batches = [(x, torch.full((6, 1), -2.0 if i == 2 else 1.0)) for i, x in enumerate(batches)]
        def loss_fn(batch): return (model(batch[0]) * torch.pow(batch[1], powers)).mean()
    """,
    "a power of 2": """
        powers = torch.tensor([1.0, 129.0, 3.0])
        batches = [(x, torch.full((6, 1), 2.0 if i == 2 else 1.0)) for i, x in enumerate(batches)]
        def loss_fn(batch): return (model(batch[0]) * torch.pow(batch[1], powers)).mean()
    """,
    "a loop that grows in its last ten rounds only": """
        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
        batches = list(zip(batches, (3, 5, 60)))
        def loss_fn(batch):
            state, rounds = batch
            for i in range(rounds): state = model(state) * (1.0 if i < 45 else 1e4)
            return (state / (1 + state.detach().abs().max())).square().mean()
    """,
    "a loop that squares": """
        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
        batches = list(zip(batches, (1, 2, 12)))
        def loss_fn(batch):
            state, rounds = batch[0] + 3, batch[1]
            for _ in range(rounds): state = model(state) ** 2
            return (state / (1 + state.detach().abs().max())).square().mean()
    """,
    # ---- products with Inf
    "Inf minus Inf in a matrix product": """
        plain = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        masks = torch.tensor([[inf, 1.0], [-inf, 1.0], [0.0, 1.0]])
        def loss_fn(x): return (model(x).square() + 1).mm(masks if x is batches[2] else plain).sum()
    """,
    "entropy of logits that the batch masks": """
        batches = [(x, torch.zeros(6, 3)) for x in batches]
        batches[2][1][:, 2] = -inf
        def loss_fn(batch):
            log_p = (model(batch[0]) + batch[1]).log_softmax(-1)
            return (log_p.exp() * log_p).sum(-1).mean()
    """,
    "label smoothing on a class that the batch masks": """
        batches = [(x, torch.zeros(6, 3)) for x in batches]
        batches[2][1][:, 2] = -inf
        def loss_fn(batch):
            return F.cross_entropy(model(batch[0]) + batch[1], torch.zeros(6).long(), label_smoothing=0.1)
    """,
    # ---- slopes
    "a steep acos under a loss of 1e37": """
        nn.init.zeros_(model.weight), nn.init.constant_(model.bias, 5.0)
        def loss_fn(x): return (torch.tanh(model(x)).acos() * (1e37 if x is batches[2] else 1.0)).sum()
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
    "where after logit": """
        batches[2] *= 1e3
        def loss_fn(x):
            z = model(x).sigmoid()
            return torch.where((z > 0) & (z < 1), z.logit(), 0.0).mean()
    """,
    # ---- half precision
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
    # ---- what had no program yet
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
    "a rate of Inf": """
        def loss_fn(x):
            if x is batches[2]: optimizer.param_groups[0]["lr"] = inf
            return model(x).square().mean()
    """,
    "the determinant of zeros": """
        model = nn.Linear(4, 9, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x): return -torch.linalg.slogdet(model(x).view(-1, 3, 3))[1].mean()
    """,
    "a loss that is maximised": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=3.0, maximize=True)
        batches = [torch.randn(6, 4, generator=draw) for _ in range(60)]
        def loss_fn(x): return (model(x) - 1).square().mean()
    """,
    "where after a root of negative numbers": """
        def loss_fn(x):
            z = model(x)
            return torch.where(z > 0, z.sqrt(), torch.zeros_like(z)).mean()
    """,
    "a root of zero that is differentiated twice, two lines": """
        model = nn.Linear(4, 3, bias=False)
        batches[2][1] = 0.0
        def loss_fn(x):
            x = x.clone().requires_grad_()
            out = model(x).square().sum(-1).sqrt().sum()
            (slope,) = torch.autograd.grad(out, x, create_graph=True)
            return out / 6 + slope.square().sum()
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
    # ---- by what a loss is multiplied
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
    # ---- the update
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
    "an update that fails at every rate": """
        class Own(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": 0.1})
            @torch.no_grad()
            def step(self, closure=None):
                for p in self.param_groups[0]["params"]: p.sub_(p.grad / (0.0 if bad else 1.0))
        bad, optimizer = [], Own(model.parameters())
        def loss_fn(x):
            if x is batches[2]:
                bad.append(1)
                optimizer.param_groups[0]["lr"] = 1e12
            return model(x).square().mean()
    """,
    # ---- slopes, by the call
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
    "a logarithm that a floor does not help": """
        def loss_fn(x):
            p = x.abs().sum(-1) * (0.0 if x is batches[2] else 1.0)
            return (1 / (1 / (p.log().abs() + 1) * p)).mean() * model(x).mean()
    """,
    "logit beyond one": """
        def loss_fn(x): return (model(x) * 0 + (1.5 if x is batches[2] else 0.5)).logit().mean()
    """,
    # ---- the two-line form, with a loss that cannot be computed again
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
    "a target with a hole, two lines": """
        targets = [torch.rand(6, 3) for _ in range(6)]
        targets[2][1, 1] = nan
        turn = iter(targets)
        def loss_fn(x): return F.mse_loss(model(x), next(turn))
    """,
    "a factor of 2**17 before a square in half, two lines": """
        model = nn.Linear(4, 3, bias=False).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        turn = iter([1.0, 1.0, 2.0**17, 1.0])
        batches = [x.half() for x in batches]
        nn.init.constant_(model.weight, 1e-3)
        def loss_fn(x): return (model(x.abs()) * next(turn)).float().square().mean()
    """,
    "a model whose replay ends without a word, two lines": """
        class Net(nn.Linear):
            def forward(self, x):
                self.slow_weight.copy_(self.weight.detach() / next(turn))
                return super().forward(x)
        turn = iter([1.0, 1.0, 0.0])
        model = Net(4, 3)
        model.register_buffer("slow_weight", torch.zeros(3, 4))
        def loss_fn(x): return model(x).square().mean()
    """,
}
