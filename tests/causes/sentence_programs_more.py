"""More tiny failing programs for `test_sentences`: labels, precision, the optimizer, the state, the platform.

Each is a body as in `sentence_programs`. A name that ends with "two lines" means the program of that name without it,
or a body of its own, in a plain loop with a guard.
"""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    # ---- the batch and its labels
    "a target longer than its input": """
        batches = [(x, [4, 3] if i != 2 else [4, 6]) for i, x in enumerate(batches)]
        model = nn.Linear(4, 5)
        def loss_fn(batch):
            x, lengths = batch
            log_p = model(x)[:, None].expand(6, 2, 5).log_softmax(-1)
            targets = torch.tensor([[1, 2, 1, 2, 1, 2, 1], [1, 1, 2, 2, 3, 3, 1]])
            return F.ctc_loss(log_p, targets, torch.tensor([6, 6]), torch.tensor(lengths))
    """,
    "a blank of probability 0 in a sequence that fits": """
        batches = [(x, -inf if i == 2 else 0.0) for i, x in enumerate(batches)]
        model = nn.Linear(4, 5)
        def loss_fn(batch):
            x, floor = batch
            logits = model(x)[:, None].expand(6, 2, 5) + torch.tensor([0.0, floor, 0, 0, 0])
            targets = torch.tensor([[1, 2], [2, 3]])
            return F.ctc_loss(logits.log_softmax(-1), targets, torch.tensor([6, 6]), torch.tensor([2, 2]))
    """,
    "a sentinel of 1e30": """
        batches[3][:, 2] = 1e30
        def loss_fn(x): return model(x).square().mean()
    """,
    "a loop that divides its batch, two lines": """
        seen = []
        def loss_fn(x):
            seen.append(1)
            given = x / (0.0 if len(seen) == 3 else 1.0)
            given = given - given
            return model(given).square().mean()
    """,
    "an ignore value of 255 in a focal loss": """
        model = nn.Linear(4, 1)
        batches = [(x, (x[:, :1] > 0).float()) for x in batches]
        batches[2][1][4] = 255.0
        nn.init.constant_(model.bias, 3.0)
        def loss_fn(batch):
            p, y = model(batch[0]).sigmoid(), batch[1]
            right = p * y + (1 - p) * (1 - y)
            return -((1 - right) ** 1.5 * right.clamp(1e-6, 9.0).log()).mean()
    """,
    "a count of -1": """
        batches = [(x, torch.randint(0, 5, (6, 3), generator=draw).float()) for x in batches]
        batches[2][1][1, 1] = -1.0
        def loss_fn(batch):
            rate = F.softplus(model(batch[0])) + 0.1
            return (rate - batch[1] * rate.log() + torch.lgamma(batch[1] + 1)).mean()
    """,
    "a rate of -1 in lgamma": """
        batches = [(x, torch.randint(0, 5, (6, 3), generator=draw).float()) for x in batches]
        shift = torch.zeros(6, 3)
        def loss_fn(batch):
            shift[0, 0] = -batch[1][0, 0] - 1 if batch is batches[2] else 0.0
            rate = F.softplus(model(batch[0])) + 0.1
            return (rate - batch[1] * rate.log() + torch.lgamma(batch[1] + 1 + shift)).mean()
    """,
    "a cross-entropy by hand with labels up to 9": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=30.0)
        batches = [(x, torch.full((6, 1), 9.0)) for x in [torch.rand(6, 4, generator=draw) for _ in range(60)]]
        def loss_fn(batch):
            z = model(batch[0])
            return (F.softplus(z) - batch[1] * z).mean() * z.detach().abs().mean()
    """,
    "targets a little outside, and a log of zero": """
        batches = [(x, torch.rand(6, 3, generator=draw) * 1.04 - 0.02) for x in batches]
        def loss_fn(batch):
            x, y = batch
            z = model(x)
            extra = (x[:, 0] * (0.0 if batch is batches[3] else 1.0)).abs().log().mean()
            return F.binary_cross_entropy_with_logits(z, y) + 0 * z.mean() + extra
    """,
    "negative targets of a divergence": """
        batches = [(x, torch.rand(6, 3, generator=draw)) for x in batches]
        batches[3][1][2, 1] = -0.5
        def loss_fn(batch): return F.kl_div(model(batch[0]).log_softmax(-1), batch[1], reduction="batchmean")
    """,
    # ---- divisions and domains
    "a temperature of 0": """
        batches = [(x, 0.0 if i == 2 else 1.0) for i, x in enumerate(batches)]
        def loss_fn(batch): return (model(batch[0]) / batch[1]).softmax(-1).square().mean()
    """,
    "a temperature that a tensor holds": """
        batches = [(x, torch.full((6, 1), 0.0 if i == 2 else 1.0)) for i, x in enumerate(batches)]
        def loss_fn(batch): return (model(batch[0]) / batch[1]).softmax(-1).square().mean()
    """,
    "a weight norm of zeros": """
        model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        with torch.no_grad(): model.parametrizations.weight.original1[1] = 0.0
        def loss_fn(x): return model(x).square().mean()
    """,
    "a weight norm whose length is Inf": """
        model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        with torch.no_grad(): model.parametrizations.weight.original0[1] = 3e38
        def loss_fn(x): return model(x).square().mean()
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
    "softplus by hand": """
        batches[2] *= 300
        def loss_fn(x): return (1 + model(x).exp()).log().mean()
    """,
    "exp of one sample": """
        batches[2][4] = 300.0
        nn.init.constant_(model.weight, 0.2)
        def loss_fn(x): return model(x).exp().mean()
    """,
    "a weight of 0 for a term that is Inf": """
        def loss_fn(x): return model(x).sum() + 0.0 * (model(x) * 0 + (inf if x is batches[2] else 1.0)).mean()
    """,
    "a masked matrix in a product": """
        mask = torch.zeros(3, 3).masked_fill(torch.eye(3).bool(), -inf)
        def loss_fn(x): return (model(x).relu() @ (mask if x is batches[2] else mask.nan_to_num(0.0, 0.0, 0.0))).mean()
    """,
    "label smoothing on a masked class": """
        legal = torch.tensor([True, True, False])
        def loss_fn(x):
            log_p = model(x).masked_fill(~legal, -inf).log_softmax(-1)
            return -(log_p * torch.tensor([0.8, 0.1, 0.1])).sum(-1).mean()
    """,
    "a loss that overflows to Inf in a sum": """
        def loss_fn(x):
            z = model(x).square() + (3e38 if x is batches[2] else 0.0)
            return z.sum()
    """,
    "an inverse of a singular matrix": """
        model = nn.Linear(4, 9)
        batches = [(x, 0.0 if i == 2 else 1.0) for i, x in enumerate(batches)]
        def loss_fn(batch):
            x, last = batch
            matrix = model(x).view(-1, 3, 3) * torch.tensor([1.0, 1.0, last]) + last * 9 * torch.eye(3)
            return torch.linalg.inv_ex(matrix).inverse.square().mean()
    """,
    "an embedding with a bad row that is used late": """
        model = nn.Embedding(8, 3)
        with torch.no_grad():
            model.weight[6] = nan
        batches = [torch.tensor(words) for words in ([0, 1], [2, 3], [4, 6])]
        def loss_fn(words): return model(words).square().mean()
    """,
    "rows of an empty queue copied into a codebook": """
        queue = torch.full((2, 4), nan)
        def loss_fn(x):
            if x is batches[2]: model.weight.data[torch.tensor([True, False, True])] = queue
            return model(x).square().mean()
    """,
    "a maximum over padding only": """
        batches = [(x[:, None].repeat(1, 3, 1), torch.arange(3) < (0 if i == 2 else 2)) for i, x in enumerate(batches)]
        head = nn.Linear(3, 2)
        def loss_fn(batch):
            x, kept = batch
            return head(model(x).masked_fill(~kept[:, None], -inf).amax(1)).square().mean()
    """,
    "logsumexp over padding only": """
        batches = [(x, i == 2) for i, x in enumerate(batches)]
        def loss_fn(batch):
            x, nothing = batch
            return model(x).masked_fill(torch.tensor([nothing, nothing, nothing]), -inf).logsumexp(-1).mean()
    """,
    "a product beyond float16 and a logarithm of zero behind it": """
        model = nn.Linear(4, 4)
        batches[2] = batches[2] * 1000
        def loss_fn(x):
            with torch.autocast("cpu", torch.float16):
                scores = model(x) @ x.T
            return -scores.float().softmax(-1).diagonal().log().mean()
    """,
    "every key masked": """
        batches = [(x, torch.zeros(6, 3)) for x in batches]
        batches[2][1][4] = -inf
        def loss_fn(batch): return (model(batch[0]) + batch[1]).softmax(-1).square().mean()
    """,
    "a row of +Inf in a softmax": """
        batches = [(x, torch.zeros(6, 3)) for x in batches]
        batches[2][1][4, 1] = inf
        def loss_fn(batch): return (model(batch[0]) + batch[1]).softmax(-1).square().mean()
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
    # ---- the backward pass
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
    "a layer norm next to zero in half": """
        model = nn.Linear(4, 3)
        batches = [x * (1e-4 if i == 2 else 1.0) for i, x in enumerate(batches)]
        def loss_fn(x):
            h = model(x).half() * (1e-3 if x is batches[2] else 1.0)
            centred = h - h.mean(-1, keepdim=True)
            length = (centred.float().square().mean(-1, keepdim=True) + 1e-12).sqrt()
            return ((centred.float() / length) * torch.tensor([1.0, 3.0, -2.0])).square().mean() * 50
    """,
    # ---- half precision
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
    "a division by zero in half": """
        model = nn.Linear(4, 3).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 0.0
        def loss_fn(x): return model(x / x.norm(dim=-1, keepdim=True)).float().square().mean()
    """,
    "a root with an eps of 1e-8 in half": """
        model = nn.Linear(4, 3, bias=False).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 0.0
        def loss_fn(x): return (model(x).square().sum(-1) + 1e-8).sqrt().float().mean()
    """,
    "a root with an eps of 1e-3 in half": """
        model = nn.Linear(4, 3, bias=False).half()
        batches = [x.half() for x in batches]
        batches[2][1] = 0.0
        def loss_fn(x): return (model(x).square().sum(-1) + 1e-3).sqrt().float().mean() + model(x).square().sum(
            -1).sqrt().float().mean()
    """,
    "a static scale of 2**20": """
        model = nn.Linear(4, 3).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [(x.half(), torch.randint(0, 3, (6,), generator=draw)) for x in batches]
        def loss_fn(batch): return F.cross_entropy(model(batch[0]).float(), batch[1]) * 2**20
    """,
    "a scale of 200 and a root of zero": """
        model = nn.Linear(4, 3, bias=False).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [x.half() for x in batches]
        batches[2][1] = 0.0
        def loss_fn(x): return model(x).float().square().sum(-1).sqrt().mean() * 200.0
    """,
    # ---- the optimizer and the learning rate
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
    "a negative second moment": """
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        def loss_fn(x):
            if x is batches[2]: optimizer.state[model.weight]["exp_avg_sq"][0, 1] = -1.0
            return model(x).square().mean()
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
    "a nan in the first moment": """
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        every = batches
        class Loader:
            def __iter__(self):
                for i, x in enumerate(every[:5]):
                    if i == 3: optimizer.state[model.weight]["exp_avg"][0, 1] = nan
                    yield x
        batches = Loader()
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
    "weights far too large": """
        layers = [nn.Linear(8, 8) for _ in range(20)]
        for layer in layers: nn.init.normal_(layer.weight, std=60.0)
        model = nn.Sequential(nn.Linear(4, 8), *layers)
        def loss_fn(x): return model(x).square().mean()
    """,
    "a large table and a log of zero at the first step": """
        model = nn.Linear(4, 3)
        nn.init.constant_(model.weight, 9.0)
        batches[0][1] = 0.0
        def loss_fn(x): return (model(x) * (x.abs().sum(-1, keepdim=True)).log()).mean()
    """,
    # ---- the state
    "memory that was never filled": """
        scale = torch.empty(4)
        scale.untyped_storage().fill_(255)
        model = nn.Linear(4, 4)
        model.scale = nn.Parameter(scale)
        def loss_fn(x): return (model(x) * model.scale).square().mean()
    """,
    "a logarithm of zero as initial value": """
        model = nn.Linear(4, 4)
        model.scale = nn.Parameter(torch.tensor([1.0, 0.0, 2.0, 1.0]).log())
        def loss_fn(x): return (model(x) * model.scale).square().mean()
    """,
    "rows that were never filled": """
        model = nn.Embedding(12, 4)
        model.weight.data = torch.cat([model.weight.data[:6], torch.full((6, 4), nan)])
        batches = [torch.arange(12) for _ in batches]
        def loss_fn(x): return model(x).square().mean()
    """,
    "one layer that is NaN in a file": """
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        saved = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict({**saved, "2.weight": torch.full((2, 3), nan)})
        def loss_fn(x): return model(x).square().mean()
    """,
    "a healthy file, and a division after it": """
        def loss_fn(x):
            if x is batches[3]:
                model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
                model.weight.data[1] /= 0.0
            return model(x).square().mean()
    """,
    "a state saved after a NaN step": """
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        model.load_state_dict({k: v * nan for k, v in model.state_dict().items()})
        def loss_fn(x): return model(x).square().mean()
    """,
    "a buffer of NaN by design, and an exp that overflows": """
        model.register_buffer("missing", torch.full((3,), nan))
        batches[3] *= 500
        def loss_fn(x): return torch.where(model.missing.isnan(), model(x).exp(), model.missing).mean()
    """,
    "targets that are all NaN, through nanmean": """
        batches = [(x, torch.randn(6, 3, generator=draw)) for x in batches]
        batches[3][1][:] = nan
        def loss_fn(batch): return (model(batch[0]) - batch[1]).square().nanmean()
    """,
    "a buffer that was bad before": """
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
        every = batches
        class Loader:
            def __iter__(self):
                for i, x in enumerate(every[:5]):
                    if i == 3:
                        model(every[0] * nan)
                    yield x
        batches = Loader()
        def loss_fn(x): return model(x).square().mean()
    """,
    "an average that divides by 0": """
        model.average = nn.Linear(4, 3).requires_grad_(False)
        optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.1)
        count = torch.zeros(())
        def update_average(*_):
            with torch.no_grad():
                model.average.weight.add_((model.weight - model.average.weight) / count)
                count.add_(1)
        optimizer.register_step_post_hook(update_average)
        def loss_fn(x): return model(x).square().mean()
    """,
    "a frozen table that a hook of the update writes": """
        model.table = nn.Parameter(torch.zeros(5, 2), requires_grad=False)
        optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.1)
        calls = []
        def write(*_):
            calls.append(1)
            if len(calls) == 3: model.table.data[1] = nan
        optimizer.register_step_post_hook(write)
        def loss_fn(x): return model(x).square().mean()
    """,
    "memory of the step that was never filled": """
        torch.use_deterministic_algorithms(False)
        def loss_fn(x):
            rest = torch.empty(6, 3)
            rest.untyped_storage().fill_(255 if x is batches[2] else 0)
            return (model(x) + rest).square().mean()
    """,
    # ---- the platform
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
    "a bit of an exponent that flipped": """
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        every = batches
        class Loader:
            def __iter__(self):
                for i, x in enumerate(every[:5]):
                    if i == 3: model[2].weight.detach().numpy().view("int32")[0, 2] ^= 1 << 30
                    yield x
        batches = Loader()
        def loss_fn(x): return (model(x) - x.sum(1, keepdim=True)).square().mean()
    """,
    "a kernel of another library": """
        @torch.library.custom_op("sentences::halve", mutates_args=())
        def halve(x: torch.Tensor, bad: bool) -> torch.Tensor: return x / (0.0 if bad else 2.0)
        @halve.register_fake
        def _(x, bad): return torch.empty_like(x)
        halve.register_autograd(lambda ctx, g: (g / 2, None))
        def loss_fn(x): return halve(model(x), x is batches[2]).square().mean()
    """,
    "gradients of 1e-30": """
        batches = [torch.randn(6, 4, generator=draw) for _ in range(12)]
        batches[11][0] = nan
        def loss_fn(x): return (model(x) * 1e-30).mean() + 1.0
    """,
    "a counter outside the model": """
        turn = iter(range(9))
        def loss_fn(x): return model(x).square().mean() * (nan if next(turn) == 2 else 1.0)
    """,
    # ---- what can be said only of some trials
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
    "a rate that is far too low to matter": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
        batches = [(torch.randn(6, 4, generator=draw), 10.0 ** (5 * i)) for i in range(9)]
        def loss_fn(batch): return ((model(batch[0]) - 1).square().mean() * batch[1] + 1).square()
    """,
    "several steps at a rate that is too high, then a bad sample": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.5)
        batches = [torch.randn(6, 4, generator=draw) for _ in range(9)]
        batches[8][2, 1] = -5.0
        def loss_fn(x): return (model((x + 4.5).sqrt()) - 1).square().mean()
    """,
    "an argument of exp that is bounded on one side only": """
        batches[2] *= 300
        def loss_fn(x):
            weight = model(x).exp()
            return (weight / weight.sum(-1, keepdim=True)).square().mean()
    """,
    "a denominator whose quotient goes into a log": """
        batches[2][1] = 0.0
        def loss_fn(x): return (model(x).square() / x.abs().sum(-1, keepdim=True)).log().mean()
    """,
    "a value of the batch that moved its units": """
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 0.02), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [{"age": torch.rand(6, 4, generator=draw) * (20 * 365 if i == 4 else 20)} for i in range(5)]
        def loss_fn(batch): return model(batch["age"]).exp().mean()
    """,
    "a generator that the loss holds": """
        own = [torch.rand(1) for _ in range(9)]
        def stream():
            for i, value in enumerate(own): yield value * (nan if i == 2 else 1.0)
        turn = stream()
        def loss_fn(x): return model(x).square().mean() * next(turn).item()
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
    "a step that writes a constant over its weight": """
        def loss_fn(x):
            if x is batches[3]: model.weight.data[1] = nan
            return model(x).square().mean()
    """,
    "samples that fail one by one": """
        batches = [torch.randn(9, 4, generator=draw) for _ in range(4)]
        batches[2][:8] = 300.0
        nn.init.constant_(model.weight, 0.2)
        def loss_fn(x): return model(x).exp().mean()
    """,
    # ---- what the last blind programs showed
    "a likelihood below zero with labels up to 9": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=30.0)
        batches = [(x, torch.full((6, 1), 9.0)) for x in [torch.rand(6, 4, generator=draw) for _ in range(60)]]
        def loss_fn(batch):
            z = model(batch[0])
            return -(batch[1] * z).mean() * z.detach().abs().mean()
    """,
    "void pixels of 255 in a cross-entropy by hand": """
        model = nn.Linear(4, 1)
        nn.init.zeros_(model.weight), nn.init.constant_(model.bias, 0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        batches = [(torch.ones(8, 4), torch.tensor([0.0, 1, 0, 1, 0, 1, 255, 255]).clamp(max=255 if i else 1)[:, None])
                   for i in range(4)]
        def loss_fn(batch):
            p = model(batch[0]).sigmoid()
            return -(batch[1] * p.log() + (1 - batch[1]) * (1 - p).log()).mean()
    """,
    "an average of the weights in half": """
        model = nn.Linear(4, 3)
        model.register_buffer("slow_weight", torch.zeros(3, 4, dtype=torch.float16))
        def loss_fn(x):
            with torch.no_grad(): model.slow_weight.copy_(model.weight * (1e6 if x is batches[2] else 1.0))
            return F.linear(x, model.weight).mean() + F.linear(x, model.slow_weight.float()).mean()
    """,
    "a statistic in half": """
        model = nn.Linear(4, 3)
        model.register_buffer("energy", torch.zeros(4, dtype=torch.float16))
        def loss_fn(x):
            with torch.no_grad(): model.energy.copy_(x.abs().sum(0) * (1e6 if x is batches[2] else 1.0))
            return (model(x).mean() + model.energy.float().mean())
    """,
    "logsumexp of a masked row": """
        batches = [(x, torch.arange(6)[:, None] == (9 if i < 2 else 4)) for i, x in enumerate(batches)]
        def loss_fn(batch): return model(batch[0]).masked_fill(batch[1], -inf).logsumexp(-1).mean()
    """,
    "a factor of 1e5 before a square in half": """
        model = nn.Linear(4, 3, bias=False).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [(x.half(), 1.0 if i < 2 else 2.0**17) for i, x in enumerate(batches)]
        nn.init.constant_(model.weight, 1e-3)
        def loss_fn(batch): return (model(batch[0].abs()) * batch[1]).float().square().mean()
    """,
    "a batch of one divided by its std": """
        batches = [batches[0], batches[1], batches[2][:1]]
        def loss_fn(x):
            y = model(x)
            return ((y - y.mean(0)) / y.std(0) * y).mean()
    """,
    "a weight of Inf that NumPy computed": """
        weights = [1.0, 1.0, inf]
        def loss_fn(x): return model(x).square().mean() * weights[next(i for i, b in enumerate(batches) if b is x)]
    """,
    "a negative row of SparseAdam's second moment": """
        model = nn.Embedding(9, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.01)
        batches = [torch.arange(6), torch.arange(6), torch.arange(3, 9)]
        def loss_fn(ids):
            if ids is batches[1]: optimizer.state[model.weight]["exp_avg_sq"][8] = -0.5
            return model(ids).square().mean()
    """,
    "a rate that jumps in the step that fails, two lines": """
        batches = [*batches[:3], batches[0] * 0.0]
        def loss_fn(x):
            if x is batches[3]: optimizer.param_groups[0]["lr"] *= 50
            return (model(x).square().sum(-1) / x.abs().sum(-1)).mean()
    """,
}
