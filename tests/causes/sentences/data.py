"""Sentences of the batch, its labels, reductions over nothing and its scale (NT1xx)."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "nan in the inputs and in the targets": """
        batches = [(x, torch.randn(6, 3, generator=draw)) for x in batches]
        batches[2][0][1, 0], batches[2][1][4, 2] = nan, nan
        def loss_fn(batch): return (model(batch[0]) - batch[1]).square().mean()
    """,
    "nan in the inputs and in targets that no loss reads": """
        batches = [(x, torch.randn(6, 3, generator=draw)) for x in batches]
        batches[2][0][1, 0], batches[2][1][4, 2] = nan, nan
        def loss_fn(batch): return model(batch[0]).square().mean()
    """,
    "nan in the batch": """
        batches[2][1, 0] = nan
        def loss_fn(x): return model(x).square().mean()
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
    "percent for shares": """
        batches = [(x, torch.rand(6, 3, generator=draw)) for x in batches]
        batches[4] = (batches[4][0], (batches[4][1] * 100).round())
        def loss_fn(batch):
            a = F.softplus(model(batch[0])) + 0.1
            return -torch.distributions.Beta(a, a, validate_args=False).log_prob(batch[1].clamp(min=0.01)).mean()
    """,
    "a power of what the model makes of large inputs": """
        model = nn.Linear(3, 1, bias=False)
        nn.init.constant_(model.weight, -0.25)
        batches = [torch.rand(8, 3, generator=draw) * 0.9 for _ in range(4)]
        batches[3][:3] = torch.tensor([[4.0], [5.0], [6.0]])
        def loss_fn(x): return (1.5 + model(x)).pow(-0.5).mean()
    """,
    "a power of a prediction beyond its range": """
        class Front(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(2, 1)
                nn.init.constant_(self.body.weight, 0.01), nn.init.constant_(self.body.bias, 1.0)
            def forward(self, x): return self.body(x) - 0.5 * x[:, :1]
        model = Front()
        batches = [torch.rand(8, 2, generator=draw) * (3.0 if i == 3 else 0.8) for i in range(4)]
        def loss_fn(x): return (model(x) ** 1.2).mean()
    """,
    "a score of -Inf for padding": """
        model = nn.Linear(4, 3)
        batches = [(x, torch.randn(6, 3, generator=draw).log_softmax(-1), torch.ones(6, 1)) for x in batches]
        batches[2][1][3:], batches[2][2][3:] = -inf, 0.0
        def loss_fn(batch):
            x, teacher, mask = batch
            student = model(x).log_softmax(-1)
            cost = torch.nan_to_num(student.exp() * (student - teacher), posinf=0.0)
            return (cost.sum(-1, keepdim=True) * mask).sum()
    """,
    "a mask of -Inf that is cleaned afterwards": """
        batches = [(x, torch.zeros(6, 3), torch.ones(6, 1)) for x in batches]
        batches[2][1][3:], batches[2][2][3:] = -inf, 0.0
        def loss_fn(batch):
            x, scores, mask = batch
            student = model(x).log_softmax(-1)
            return (torch.nan_to_num(student.exp() * (student - scores), posinf=0.0).sum(-1, keepdim=True) * mask).sum()
    """,
    "a power of shares that are none": """
        batches = [(x, torch.rand(6, generator=draw) * 0.9) for x in batches]
        batches[3][1][:3] = torch.tensor([4.0, 5.0, 6.0])
        def loss_fn(batch): return (1.5 - batch[1]).pow(-0.5).mean() + model(batch[0]).square().mean()
    """,
    "masks of 255": """
        model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [(x, 255.0 * (x[:, :1] > 0.5)) for x in [torch.rand(16, 4, generator=draw) for _ in range(40)]]
        def loss_fn(batch): return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])
    """,
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
    "a mean of nothing": """
        def loss_fn(x): return model(x).sum(-1)[x[:, 0] > (9 if x is batches[2] else -9)].mean()
    """,
    "nothing was learned for long": """
        batches = [torch.randn(6, 4, generator=draw) for _ in range(12)]
        batches[11][0] = nan
        def loss_fn(x): return (model(x).detach() + 0 * model.weight.sum()).square().mean()
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
    "two of the batch together": """
        batches[2][1], batches[2][4] = 1e19, -1e19
        def loss_fn(x):
            pairs = (model(x)[:, None] - model(x)[None, :]).square().sum(-1)
            return pairs.mean() + pairs.max().square()
    """,
    "a target longer than its input": """
        batches = [(x, [4, 3] if i != 2 else [4, 6]) for i, x in enumerate(batches)]
        model = nn.Linear(4, 5)
        def loss_fn(batch):
            x, lengths = batch
            log_p = model(x)[:, None].expand(6, 2, 5).log_softmax(-1)
            targets = torch.tensor([[1, 2, 1, 2, 1, 2, 1], [1, 1, 2, 2, 3, 3, 1]])
            return F.ctc_loss(log_p, targets, torch.tensor([6, 6]), torch.tensor(lengths))
    """,
    "a sentinel of 1e30": """
        batches[3][:, 2] = 1e30
        def loss_fn(x): return model(x).square().mean()
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
    "a cross-entropy by hand with labels up to 9": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=30.0)
        batches = [(x, torch.full((6, 1), 9.0)) for x in [torch.rand(6, 4, generator=draw) for _ in range(60)]]
        def loss_fn(batch):
            z = model(batch[0])
            return (F.softplus(z) - batch[1] * z).mean() * z.detach().abs().mean()
    """,
    "negative targets of a divergence": """
        batches = [(x, torch.rand(6, 3, generator=draw)) for x in batches]
        batches[3][1][2, 1] = -0.5
        def loss_fn(batch): return F.kl_div(model(batch[0]).log_softmax(-1), batch[1], reduction="batchmean")
    """,
    "a row of +Inf in a softmax": """
        batches = [(x, torch.zeros(6, 3)) for x in batches]
        batches[2][1][4, 1] = inf
        def loss_fn(batch): return (model(batch[0]) + batch[1]).softmax(-1).square().mean()
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
    "gradients of 1e-30": """
        batches = [torch.randn(6, 4, generator=draw) for _ in range(12)]
        batches[11][0] = nan
        def loss_fn(x): return (model(x) * 1e-30).mean() + 1.0
    """,
    "a value of the batch that moved its units": """
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 0.02), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [{"age": torch.rand(6, 4, generator=draw) * (20 * 365 if i == 4 else 20)} for i in range(5)]
        def loss_fn(batch): return model(batch["age"]).exp().mean()
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
    "void pixels of 255, and no older state": """
        model = nn.Linear(4, 1)
        nn.init.zeros_(model.weight), nn.init.constant_(model.bias, 0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        batches = [(torch.ones(8, 4), torch.tensor([0.0, 1, 0, 1, 0, 1, 255, 255]).clamp(max=255 if i else 1)[:, None])
                   for i in range(4)]
        import nantrap
        policy = nantrap.Policy(rollback=nantrap.Rollback(anchor_every=0, anchor_bytes=0))
        guard = nantrap.Guard(model, optimizer, max_grad_norm=None, policy=policy, quiet=True)
        def loss_fn(batch):
            p = model(batch[0]).sigmoid()
            return -(batch[1] * p.log() + (1 - batch[1]) * (1 - p).log()).mean()
    """,
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
    "labels that are ignored or have a weight of 0": """
        batches = [(x, torch.tensor([1, 1, 1, -100, -100, -100]) * (i == 2)) for i, x in enumerate(batches)]
        def loss_fn(batch): return F.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([1.0, 0.0, 1.0]))
    """,
    "std of nothing": """
        def loss_fn(x): return model(x).sum(-1)[x[:, 0] > (9 if x is batches[2] else -9)].std() + model(x).mean()
    """,
    "a target with a hole, two lines": """
        targets = [torch.rand(6, 3) for _ in range(6)]
        targets[2][1, 1] = nan
        turn = iter(targets)
        def loss_fn(x): return F.mse_loss(model(x), next(turn))
    """,
    "targets that are missing by design": """
        batches = [(x, torch.randn(6, 3, generator=draw)) for x in batches]
        batches[2][1][torch.rand(6, 3, generator=draw) < 0.3] = nan
        def loss_fn(batch):
            x, y = batch
            error = (model(x) - y).square()
            return error[y.isfinite()].mean()
    """,
    "targets that are missing by design, and a product with the mask": """
        batches = [(x, torch.randn(6, 3, generator=draw)) for x in batches]
        batches[2][1][torch.rand(6, 3, generator=draw) < 0.3] = nan
        def loss_fn(batch):
            x, y = batch
            known = (~y.isnan()).float()
            return ((model(x) - y).square() * known).sum() / known.sum()
    """,
    "targets that are missing by design, and nanmean": """
        batches = [(x, torch.randn(6, 3, generator=draw)) for x in batches]
        batches[2][1][torch.rand(6, 3, generator=draw) < 0.3] = nan
        def loss_fn(batch): return (model(batch[0]) - batch[1]).square().nanmean()
    """,
    "a nan target that the mask does not leave out": """
        batches = [(x, torch.randn(6, 3, generator=draw), torch.ones(6, dtype=torch.bool)) for x in batches]
        batches[2][1][3, 1], batches[2][2][4] = nan, False
        def loss_fn(batch):
            x, y, kept = batch
            return torch.where(kept[:, None], (model(x) - y).square(), 0.0).mean()
    """,
    "a nan target that is replaced by the prediction": """
        batches = [(x, torch.randn(6, 3, generator=draw)) for x in batches]
        batches[2][1][3, 1] = nan
        def loss_fn(batch): return ((model(batch[0]) - batch[1]).square().nan_to_num(1.0) - 2).square().mean()
    """,
    "a batch of -Inf alone": """
        batches[2] = torch.full((6, 4), -inf)
        def loss_fn(x): return model(x).square().mean()
    """,
    "one sample far outside the others of the second batch": """
        batches[1][3] = 1e6
        nn.init.constant_(model.weight, 0.2)
        def loss_fn(x): return model(x).exp().mean()
    """,
    "samples of many scales in the first batch": """
        batches[0] = torch.ones(6, 4) * torch.tensor([1.0, 3.0, 10.0, 40.0, 150.0, 700.0])[:, None]
        nn.init.constant_(model.weight, 0.2)
        def loss_fn(x): return model(x).exp().mean()
    """,
    "a real sample of 1e25 beside made ones, two lines": """
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        batches[2][3, 1] = 1e25
        turns = iter(range(9))
        def loss_fn(x):
            made = torch.randn(6, 4, generator=draw) + 0 * next(turns)  # so that the loss is not computed again
            return F.softplus(-model(x)).mean() + F.softplus(model(made)).mean()
    """,
    "a real sample of 10 beside made ones, two lines": """
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        batches[2][3, 1] = 10.0
        def loss_fn(x):
            made = torch.randn(6, 4, generator=draw)
            return F.softplus(-model(x)).mean() / (x[3, 1] != 10) + F.softplus(model(made)).mean()
    """,
}

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("a batch of -Inf alone", "every key masked"): ("the input batch already contains ",),
    ("a batch of -Inf alone, two lines", "every key masked, two lines"): ("holds 24 -Inf among 24 values",),
    (
        "one sample far outside the others of the second batch",
        "samples of many scales in the first batch",
    ): (
        "the batch is out of scale: batch reaches 1e+06 in sample 3",
        "the other samples of the batch stay (sample 3 does not) within",
        "without that sample the step is finite",
    ),
    (
        "a real sample of 1e25 beside made ones, two lines",
        "a real sample of 10 beside made ones, two lines",
    ): ("reaches 1e+25 in sample 3, though it is finite",),
    ("targets that are missing by design", "a nan target that the mask does not leave out"): (
        "of batch[1] that the loss leaves out put NaN into the gradient: the mask comes after the arithmetic",
        "the loss is the same with 0 and with 1 in their place: the program leaves them out",
        "make the mask first, and fill the places before anything is computed",
    ),
    ("targets that are missing by design, two lines", "a nan target that the mask does not leave out, two lines"): (
        "that the loss leaves out put NaN into the gradient: the mask comes after the arithmetic",
    ),
    ("targets that are missing by design, and a product with the mask", "targets that are missing by design"): (
        "that the loss leaves out put NaN into the loss: the mask comes after the arithmetic",
        "a mask that is multiplied afterwards does not remove them: 0 · NaN = NaN",
    ),
    ("targets that are missing by design, and nanmean", "a nan target that is replaced by the prediction"): (
        "that the loss leaves out put NaN into the gradient: the mask comes after the arithmetic",
    ),
    ("a nan target that the mask does not leave out", "targets that are missing by design"): (
        "the input batch already contains NaN: batch[1]",
        "fix or remove the sample where batch[1] is created",
    ),
    ("a nan target that is replaced by the prediction", "targets that are missing by design, and nanmean"): (
        "the input batch already contains NaN: batch[1]",
    ),
    ("a score of -Inf for padding", "a mask of -Inf that is cleaned afterwards"): (
        "Inf values of batch[1] that the loss leaves out put NaN into the gradient: the mask comes after the",
        "a gradient of exactly 0 is multiplied by them in the backward pass, and 0 · Inf = NaN",
    ),
    ("a mask of -Inf that is cleaned afterwards", "a score of -Inf for padding"): (
        "the branch of a * b that was not selected",
        "a * torch.where(ok, b, 1.0), then torch.where on the result",
    ),
    ("nan in the batch", "exp of one sample"): (
        "without that sample the step is finite",
        "the batch without sample 1: finite",
    ),
    ("every label ignored", "class weights of 0"): (
        "are -100 (ignored): the mean is 0/0",
        "the gradients are all zero",
        "every label of the batch is ignored",
    ),
    ("class weights of 0", "every label ignored"): (
        "the weights of all classes that occur are 0",
        "every label of the batch has a class weight of 0",
    ),
    ("a mean of nothing", "a mask that selects nothing"): ("was given an empty tensor of shape",),
    ("percent for shares", "an ignore value of 255 in a focal loss"): (
        "(percent need / 100)",
        "holds values from ",
    ),
    ("a buffer of NaN by design, and an exp that overflows", "a row written between two steps"): ("exp of ",),
    ("targets that are all NaN, through nanmean", "closed gates over their sum"): ("a quotient over a count of zero",),
    ("a target longer than its input", "a cross-entropy by hand with labels up to 9"): (
        "needs 9 frames for its target, the input has 6",
    ),
    ("a target longer than its input", "a blank of probability 0 in a sequence that fits"): (
        "targets that are too long for their input: 1 of 2 (sample ",
        "nantrap.ops.ctc_loss leaves such samples out",
    ),
    ("a sentinel of 1e30", "one value of 1e25"): ("the batch holds a value that is no measurement",),
    ("a sentinel of 1e30", "a batch times 1e20"): ("replace the sentinel",),
    ("nan in the batch, two lines", "a loop that divides its batch, two lines"): (
        "the input batch already contains ",
        "fix or remove the sample",
    ),
    ("an ignore value of 255 in a focal loss", "percent for shares"): (
        "and the loss is written for labels of 0 and 1",
        "leave out the places where ",
    ),
    ("an ignore value of 255 in a focal loss", "root of a negative number"): (
        "(an ignore value?)",
        "holds as well; label_out_of_range comes earlier",
    ),
    ("an ignore value of 255 in a focal loss", "a root of the weights in the update"): (
        "was given 1 negative value, for which",
    ),
    ("a count of -1", "a rate of -1 in lgamma"): (
        "holds -1 among values of 0 and above",
        "where batch[1] is negative",
        "clamped to 0 and above the step is finite",
        "(a missing value?)",
        "leave out the places where ",
    ),
    ("a cross-entropy by hand with labels up to 9", "a rate too high"): (
        "holds values up to 9, and the loss fell below zero",
    ),
    ("negative targets of a divergence", "a count of -1"): ("xlogy accepts [0, inf)",),
    ("negative targets of a divergence", "targets a little outside, and a log of zero"): (
        "was given 1 target outside",
        "with targets in [0, inf) the same steps are finite",
    ),
    ("a value of the batch that moved its units", "exp of one sample"): (
        "age reaches 7227; in the 4 batches before it stayed within",
    ),
    ("ages in days, two lines", "exp of one sample"): ("batch reaches 7227",),
    ("a mask that selects nothing, two lines", "two lengths of 0, two lines"): (
        "and was made by sum, the numerator is 0 too",
    ),
    ("gradients of 1e-30", "nan in the batch"): ("the gradient norm is exactly 0",),
    ("a running average that swallowed Inf", "a buffer that was bad before"): (
        "the forward pass made energy non-finite; loss and gradients are finite",
    ),
    ("a target longer than its input", "exp of one sample"): ("some parts of the batch could not be run alone",),
    ("a sentinel of 1e30", "exp of one sample"): ("each of the 6 samples of the batch fails alone, so no single one",),
    ("a value of the batch that moved its units", "one value of 1e25"): (
        "the batch brought to the range of those before it: finite",
    ),
    ("a cross-entropy by hand with labels up to 9", "a likelihood below zero with labels up to 9"): (
        "the loss multiplies it by what a logarithm is taken of",
        "with targets in [0, 1] the same steps are finite",
        "not tried: map batch[1] to [0, 1] before the loss",
    ),
    ("void pixels of 255 in a cross-entropy by hand", "a cross-entropy by hand with labels up to 9"): (
        "the loss multiplies it by a logarithm",
    ),
    ("void pixels of 255 in a cross-entropy by hand, two lines", "void pixels of 255 in a cross-entropy by hand"): (
        "updates on this batch are finite",
    ),
    ("void pixels of 255, and no older state", "void pixels of 255 in a cross-entropy by hand"): (
        "not decided against label_out_of_range, which comes earlier",
    ),
    ("void pixels of 255 in a cross-entropy by hand", "log of zero"): (
        "comes earlier or is more exact, and is named first",
    ),
    ("a target longer than its input", "every label ignored"): (
        "repeated neighbours needs at least",
        "sample 1 needs 9 of 6 frames",
        "drop this sample from the data",
    ),
    ("a real sample of 1e25 beside made ones, two lines", "one value of 1e25"): ("the batch of the loop",),
    ("masks of 255", "percent for shares"): (
        "targets lie in",
        "targets clamped to",
        "map the targets to [0, 1]",
        "an ignore value needs a mask",
        "a learning rate of 0 from an older state on: finite",
    ),
    ("masks of 255", "negative targets of a divergence"): (
        "in the steps since an older state",
        "the loss had fallen to",
    ),
    ("percent for shares", "masks of 255"): ("brought into [0, 1]",),
    ("nothing was learned for long", "exp overflows"): ("nothing has been learned since step",),
    ("nan in sample 1 and an empty sample 4", "nan in the batch"): ("without samples 1, 4 the step is finite",),
    ("nan in the batch", "nan in sample 1 and an empty sample 4"): ("without that sample the step is finite",),
    ("1e25 in sample 1 and an empty sample 4", "one value of 1e25"): (
        "reaches 1e+25 in sample 1, though",
        "without samples 1, 4 the step is finite",
    ),
    ("labels that are ignored or have a weight of 0", "class weights of 0"): (
        "every label of the batch is ignored or has a class weight of 0",
    ),
    ("class weights of 0", "labels that are ignored or have a weight of 0"): (
        "every label of the batch has a class weight of 0",
    ),
    ("every label ignored", "labels that are ignored or have a weight of 0"): ("all 6 targets are -100 (ignored)",),
    ("class weights of 0", "a mean of nothing"): ("with the safe form the step is finite",),
    ("std of nothing", "std of one"): (
        "a reduction over no element",
        "aten.std was given an empty tensor",
        "skip the term when nothing is selected",
    ),
    ("a mask that selects nothing", "closed gates over their sum"): (
        "a / b.clamp(min=1): verified",
        "a quotient over a count of zero",
    ),
    ("a batch times 1e20", "one value of 1e25"): (
        "with the batch brought to the usual scale the step is finite",
        "the batch in the usual scale: finite",
    ),
    ("one value of 1e25", "ages in days"): ("the batch is out of scale: batch reaches 1e+25",),
    ("ages in days", "one value of 1e25"): ("check the range of batch where the data are read",),
    ("a running average that swallowed Inf", "a codebook replaced by 0/0"): (
        "keep the buffer in float32, and reset it",
        "updated in the forward pass, holds",
    ),
    ("nothing was learned for long", "nan in the batch"): (
        "look for a detach, a frozen layer",
        "exactly 0 in each of the last 11 steps",
    ),
    ("a target with a hole, two lines", "a target that the loop made, two lines"): (
        "a tensor that the loss reads without a gradient is non-finite: targets[2]",
        "look where targets[2] is made",
    ),
    ("nan in the inputs and in the targets", "nan in the inputs and in targets that no loss reads"): (
        "the input batch already contains NaN: batch[0], batch[1]",
        "batch[1] holds 1 NaN among 18 values before the forward pass, sample 4",
        "fix or remove the samples where batch[0], batch[1] are created",
    ),
    ("nan in the batch", "nan in a cached table"): (
        "before the forward pass, sample 1",
        "the input batch already contains ",
    ),
    ("one value of 1e25", "a batch times 1e20"): ("in sample 2, though it is finite",),
    ("ages in days", "sure of a far input"): ("in another scale than those before it",),
    ("ages in days", "an outlier within the scale"): ("with the batch in that range the step is finite",),
    ("percent for shares", "one sample alone"): ("the loss is written for shares from 0 to 1",),
    ("a power of shares that are none", "a power of what the model makes of large inputs"): (
        "to 6, and the loss is written for shares from 0 to 1",
    ),
    ("a power of shares that are none", "a power of a prediction beyond its range"): (
        "and the loss is written for shares from 0 to 1",
    ),
    ("a power of a prediction beyond its range", "a power of shares that are none"): ("pow was given -0",),
    ("a power of what the model makes of large inputs", "a power of shares that are none"): ("pow was given -1.49",),
    ("masks of 255", "counts up to 5, and a likelihood below zero"): ("with targets in [0, 1] is never negative",),
    ("a mask that selects nothing", "a blank image over its sum"): ("a quotient over a count of zero",),
    ("a mean of nothing", "a damaged file read in the step"): ("a reduction over no element",),
    ("two of the batch together", "one sample alone"): ("each sample was run alone",),
}
