"""Sentences of weights, buffers and optimizer state that were loaded or written (NT6xx)."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "a ring that is read beyond its fill": """
        ring = torch.full((20, 4), nan)
        ring[:12] = torch.randn(12, 4, generator=draw)
        batches = [[0, 3, 7], [1, 11, 2], [4, 15, 5]]
        def loss_fn(draws): return model(ring[draws]).square().mean()
    """,
    "a table with holes that is read": """
        table = torch.randn(20, 4, generator=draw)
        table[3, 1], table[7, 2], table[15, 0] = nan, nan, nan
        batches = [[0, 4, 8], [1, 11, 2], [4, 15, 5]]
        def loss_fn(draws): return model(table[draws]).square().mean()
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
    "a rate that a schedule raises": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [(i, torch.randn(6, 4, generator=draw)) for i in range(60)]
        def loss_fn(batch):
            optimizer.param_groups[0]["lr"] = 50.0 if batch[0] >= 6 else 0.01
            return (model(batch[1]) - 1).square().mean()
    """,
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
    "a negative second moment": """
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        def loss_fn(x):
            if x is batches[2]: optimizer.state[model.weight]["exp_avg_sq"][0, 1] = -1.0
            return model(x).square().mean()
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
    "a copy of running statistics in half": """
        model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "slow": nn.Module()})
        model.slow.register_buffer("1__running_var", torch.ones(8).half())
        optimizer = torch.optim.SGD(model.net.parameters(), lr=1e-3)
        batches[2] = batches[2] * 3000
        def average(*_):
            with torch.no_grad(): getattr(model.slow, "1__running_var").copy_(model.net[1].running_var.half())
        optimizer.register_step_post_hook(average)
        def loss_fn(x): return model.net(x).square().mean()
    """,
    "a buffer of a hook that is no copy": """
        model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "slow": nn.Module()})
        model.slow.register_buffer("largest", torch.ones(8).half())
        optimizer = torch.optim.SGD(model.net.parameters(), lr=1e-3)
        batches[2] = batches[2] * 3000
        def note(*_):
            with torch.no_grad(): model.slow.largest.copy_(model.net[1].running_var.half())
        optimizer.register_step_post_hook(note)
        def loss_fn(x): return model.net(x).square().mean()
    """,
    "memory of the step that was never filled": """
        torch.use_deterministic_algorithms(False)
        def loss_fn(x):
            rest = torch.empty(6, 3)
            rest.untyped_storage().fill_(255 if x is batches[2] else 0)
            return (model(x) + rest).square().mean()
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
    "a step that writes a constant over its weight": """
        def loss_fn(x):
            if x is batches[3]: model.weight.data[1] = nan
            return model(x).square().mean()
    """,
    "an average of the weights in half": """
        model = nn.Linear(4, 3)
        model.register_buffer("slow_weight", torch.zeros(3, 4, dtype=torch.float16))
        def loss_fn(x):
            with torch.no_grad(): model.slow_weight.copy_(model.weight * (1e6 if x is batches[2] else 1.0))
            return F.linear(x, model.weight).mean() + F.linear(x, model.slow_weight.float()).mean()
    """,
    "a negative row of SparseAdam's second moment": """
        model = nn.Embedding(9, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.01)
        batches = [torch.arange(6), torch.arange(6), torch.arange(3, 9)]
        def loss_fn(ids):
            if ids is batches[1]: optimizer.state[model.weight]["exp_avg_sq"][8] = -0.5
            return model(ids).square().mean()
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

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("a ring that is read beyond its fill", "a table with holes that is read"): (
        "was read where it looks as if nothing had been written to it",
        ", in rows 12 to 19 of 20: as torch.empty may leave them",
        "draw only indices of what was written (its size so far, not its capacity)",
    ),
    ("a damaged file read in the step", "weights bad from the start"): (
        "load_state_dict wrote the model",
        "inside this step",
        "was non-finite when it was loaded",
    ),
    ("a codebook replaced by 0/0", "a running average that swallowed Inf"): (
        "the forward pass wrote codes:",
        "by the program itself",
    ),
    ("a row written between two steps", "a buffer of NaN by design, and an exp that overflows"): (
        "it was finite after the last step",
        "by the program itself",
    ),
    ("a teacher written between two steps", "a row written between two steps"): (
        "it was finite after the last good step, and was written since",
        "the non-finite values that the program wrote into 1.weight were replaced by the last finite ones",
    ),
    ("a teacher written between two steps", "a codebook replaced by 0/0"): ("it was finite after the last good step",),
    ("a bit of an exponent that flipped", "a rate too high"): (
        "the program wrote it, or a bit of it flipped in memory",
        "the other 7 values of 2.weight stay within",
        "with that one value set to 0 the step is finite",
    ),
    ("an embedding with a bad row that is used late", "a row written between two steps"): (
        "weight was non-finite before step 0 already",
        "it took no part in step 0, which was applied",
        "initialise weight as a whole",
    ),
    ("rows of an empty queue copied into a codebook", "a row written between two steps"): (
        "aten.index_put_ writes non-finite values over it inside the step",
    ),
    ("a negative second moment", "a root of the weights in the update"): (
        "the second moment is negative at 1 of 12 places",
    ),
    ("a nan in the first moment", "a root of the weights in the update"): (
        "the optimizer state was bad before the step",
        "weights and gradients are finite",
        "with a fresh optimizer state the same update is finite",
    ),
    ("a rate that a schedule raises", "a rate raised for good reason, and a bad sample"): (
        "with the learning rate before the jump the same steps stay finite",
        "the learning rate before the jump: finite",
    ),
    ("memory that was never filled", "a logarithm of zero as initial value"): (
        "scale was never initialised",
        "no write to it was counted since it was made",
        "initialise it (nn.init.xavier_uniform_",
    ),
    ("rows that were never filled", "memory that was never filled"): (
        "a part of weight was never initialised",
        "whole rows or columns of it are bad",
        "a file may hold the same values",
    ),
    ("one layer that is NaN in a file", "rows that were never filled"): ("all of it is bad",),
    ("a logarithm of zero as initial value", "memory that was never filled"): (
        "was made with a non-finite value by the program itself",
        "check the expression that gives the initial value",
    ),
    ("a logarithm of zero as initial value", "weights bad from the start"): (
        "before the first step, and no write to it was counted",
    ),
    ("a state saved after a NaN step", "weights bad from the start"): ("a state that was saved after a bad step",),
    ("weights bad from the start", "a state saved after a NaN step"): ("what wrote these values was not seen",),
    ("a damaged file read in the step", "a healthy file, and a division after it"): (
        "and left it non-finite",
        "was non-finite when it was loaded",
    ),
    ("a buffer that was bad before", "a running average that swallowed Inf"): ("the buffer was bad before this step",),
    ("a buffer that was bad before", "a codebook replaced by 0/0"): ("a skipped optimizer step does not undo",),
    ("an average that divides by 0", "a frozen table that a hook of the update writes"): (
        "the averaged weights are non-finite",
        "update it only after applied steps",
    ),
    ("an average that divides by 0", "a state saved after a NaN step"): ("what the optimizer trains is finite",),
    ("a frozen table that a hook of the update writes", "an average that divides by 0"): (
        "after the update, and the optimizer does not train it",
    ),
    ("a copy of running statistics in half", "a buffer of a hook that is no copy"): (
        "slow.1__running_var, shaped and named like net.1.running_var, became non-finite in the update",
    ),
    ("a buffer of a hook that is no copy", "a copy of running statistics in half"): (
        "slow.largest was overwritten with a non-finite value by the program itself",
    ),
    ("memory of the step that was never filled", "a row copied in the step"): ("no operation that was seen wrote it",),
    ("a step that writes a constant over its weight", "a row written between two steps"): (
        "aten.fill_ writes non-finite values over it inside the step",
        "set to 0 before the step: not finite",
    ),
    ("a nan in the first moment", "an update divided by a norm of 0"): ("a fresh optimizer state: finite",),
    ("an average of the weights in half", "a statistic in half"): (
        "a copy of a trained weight, is kept in float16 and overflowed",
        "keep slow_weight in float32: verified",
    ),
    ("an average of the weights in half", "two large activations in half"): (
        "with slow_weight in float32 the step is finite",
        "into slow_weight; float16 ends at 65504",
    ),
    ("weights bad from the start", "a row written between two steps"): (
        "If nothing was loaded, look at what gives",
        "names the newest healthy one; start from that",
    ),
    ("a negative second moment", "Adam's eps in half"): (
        ": the square root of that is NaN",
        "restore the optimizer state from an older checkpoint",
    ),
    ("a bit of an exponent that flipped", "a row written between two steps"): ("the one value of",),
    ("a negative row of SparseAdam's second moment", "a negative second moment"): (
        "rows of the second moment are negative at",
    ),
    ("a rate that a schedule raises", "a rate that jumps in the step that fails, two lines"): (
        "the learning rate jumped from",
    ),
    ("a rate that a schedule raises", "a rate too high"): (
        "if a state was restored there",
        "the learning rate jumped from 0.01 to 50",
    ),
    ("a row copied in the step", "a row written past PyTorch in the step"): ("over it inside the step, in line",),
    ("a row copied in the step", "a bit of an exponent that flipped"): ("tensor.data, copy_ under no_grad, NumPy",),
    ("a bit of an exponent that flipped", "a row copied in the step"): (
        "roll back to an older state; look for what writes",
        "if nothing does and it happens again, test the memory",
    ),
    ("an update that fails at every rate", "a rate of Inf"): (
        "a small learning rate does not help",
        "the same steps at the same learning rate fail earlier when they are run again",
    ),
    ("a model whose replay ends without a word, two lines", "a copy written after the model ran, two lines"): (
        "the replay ended with StopIteration",
    ),
    ("weights bad from the start", "a damaged file read in the step"): ("a bad checkpoint, or made so with the model",),
    ("a row copied in the step", "a row written between two steps"): (
        "writes non-finite values over it inside the step",
    ),
    ("a row written past PyTorch in the step", "a row written between two steps"): ("the step writes them again",),
    ("a row written between two steps", "weights bad from the start"): ("it was finite after the last step",),
}
