"""Sentences of masked rows, 0 · Inf, Inf - Inf, exponentials that overflow and recurrences (NT203 to NT205, NT207)."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "a Bessel function of a large number": """
        batches[2] *= 1e3
        def loss_fn(x): return torch.special.i0(model(x)).log().mean()
    """,
    "an exp of a large number": """
        batches[2] *= 1e3
        def loss_fn(x): return (model(x).exp() + 1).reciprocal().log().mean() + model(x).exp().mean()
    """,
    "a cast to e5m2 beyond its end": """
        batches[2] *= 1e6
        def loss_fn(x):
            h = model(x)
            narrow = h.detach().to(torch.float8_e5m2).float()
            return (h + (narrow - h.detach())).tanh().mean() + narrow.square().mean()
    """,
    "a row that a custom function leaves NaN": """
        class Mean(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                out = x.new_empty(6, 3).fill_(nan if x[0, 0] > 99 else 0.0)
                out[:5] = x[:5]
                return out
            @staticmethod
            def backward(ctx, g): return g
        batches[2][0] = 500.0
        nn.init.constant_(model.weight, 0.2)
        def loss_fn(x): return Mean.apply(model(x)).square().mean()
    """,
    "a temperature of 0.002": """
        def loss_fn(x):
            z = F.normalize(model(x))
            return (z @ z.T / 0.002).exp().mean()
    """,
    "a temperature of 0.002 before a softmax": """
        def loss_fn(x): return -(model(x) / 0.002).softmax(-1)[:, 0].log().mean()
    """,
    "a temperature of 0.5 and a score of 1000": """
        nn.init.constant_(model.weight, 250.0)
        batches = [torch.ones(6, 4) for _ in range(2)]
        def loss_fn(x): return (model(x) / 0.5).exp().mean()
    """,
    "an outlier within the scale": """
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 2.0), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        batches = [torch.rand(6, 4, generator=draw) * (20 if i == 4 else 2) for i in range(5)]
        def loss_fn(x): return model(x).exp().mean()
    """,
    "counts up to 5, and a likelihood below zero": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [(x, torch.tensor([[5.0]])) for x in [torch.randn(6, 4, generator=draw) for _ in range(60)]]
        scale = nn.Parameter(torch.zeros(()))
        model.scale = scale
        optimizer = torch.optim.SGD([scale], lr=30.0)
        def loss_fn(batch): return model.scale * 3 - (-model.scale).exp() * 0
    """,
    "a divergence between two masked distributions": """
        legal = torch.tensor([True, True, False])
        teacher = torch.zeros(3).masked_fill(~legal, -inf).log_softmax(-1)
        def loss_fn(x):
            log_p = model(x).masked_fill(~legal, -inf).log_softmax(-1)
            return (teacher.exp() * (teacher - log_p)).sum(-1).mean()
    """,
    "a lattice with unreachable cells": """
        unreachable = torch.full((6,), -inf)
        def loss_fn(x):
            log_p = model(x).log_softmax(-1)
            skipped = torch.logaddexp(unreachable + log_p[:, 0], unreachable)
            return -torch.logaddexp(skipped, log_p[:, 1]).mean()
    """,
    "an overflow minus an overflow": """
        batches[2] *= 1e3
        def loss_fn(x): return (model(x).exp() * 1e38 - model(x).exp() * 1e38).mean()
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
    "exp overflows": """
        batches = [x * (300 if i == 1 else 1) for i, x in enumerate(batches)]
        def loss_fn(x): return model(x).exp().mean()
    """,
    "cosh overflows": """
        batches = [x * (300 if i == 1 else 1) for i, x in enumerate(batches)]
        def loss_fn(x): return model(x).cosh().mean()
    """,
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
    "a blank of probability 0 in a sequence that fits": """
        batches = [(x, -inf if i == 2 else 0.0) for i, x in enumerate(batches)]
        model = nn.Linear(4, 5)
        def loss_fn(batch):
            x, floor = batch
            logits = model(x)[:, None].expand(6, 2, 5) + torch.tensor([0.0, floor, 0, 0, 0])
            targets = torch.tensor([[1, 2], [2, 3]])
            return F.ctc_loss(logits.log_softmax(-1), targets, torch.tensor([6, 6]), torch.tensor([2, 2]))
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
    "every key masked": """
        batches = [(x, torch.zeros(6, 3)) for x in batches]
        batches[2][1][4] = -inf
        def loss_fn(batch): return (model(batch[0]) + batch[1]).softmax(-1).square().mean()
    """,
    "an argument of exp that is bounded on one side only": """
        batches[2] *= 300
        def loss_fn(x):
            weight = model(x).exp()
            return (weight / weight.sum(-1, keepdim=True)).square().mean()
    """,
    "samples that fail one by one": """
        batches = [torch.randn(9, 4, generator=draw) for _ in range(4)]
        batches[2][:8] = 300.0
        nn.init.constant_(model.weight, 0.2)
        def loss_fn(x): return model(x).exp().mean()
    """,
    "logsumexp of a masked row": """
        batches = [(x, torch.arange(6)[:, None] == (9 if i < 2 else 4)) for i, x in enumerate(batches)]
        def loss_fn(batch): return model(batch[0]).masked_fill(batch[1], -inf).logsumexp(-1).mean()
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
}

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("a Bessel function of a large number", "an exp of a large number"): (
        "aten.i0 was given ",
        "i0e(x), which is i0(x) · exp(-|x|): log i0(x) = log i0e(x) + |x|",
    ),
    ("an exp of a large number", "a Bessel function of a large number"): ("stay in log space with logsumexp",),
    ("a cast to e5m2 beyond its end", "an exp of a large number"): (
        "exceeded the range of float8_e5m2: ",
        "float8_e5m2 ends at 57344",
        ".clamp(-57344, 57344) before the cast",
    ),
    ("exp overflows", "cosh overflows"): (
        "aten.exp was given",
        "in float32 it overflows above 88.72",
        "exp of ",
    ),
    ("a recurrence", "gradients that grow alone"): ("-> Inf within one forward pass",),
    ("a recurrence and a loss that grows", "a recurrence that the updates made grow"): (
        "with the weights of step 0 the step fails at the same operation",
    ),
    ("softplus by hand", "exp of one sample"): (
        "with softplus(x) instead of log(1 + exp(x)) in line 15 the step is finite",
        "softplus(x) instead of log(1 + exp(x))",
    ),
    ("exp of one sample", "samples that fail one by one"): ("only sample 4 reaches it",),
    ("samples that fail one by one", "exp of one sample"): ("0, 1, 2, 3, 4, 5 and 2 others reach it",),
    ("exp of one sample", "softplus by hand"): ("with torch.exp(x.clamp(max=22)) in line 16 the step is finite",),
    ("a weight of 0 for a term that is Inf", "entropy of masked logits"): (
        "a plain number that is exactly 0 was multiplied by Inf",
    ),
    ("a divergence between two masked distributions", "an overflow minus an overflow"): (
        "-Inf minus -Inf gave NaN",
        "both operands of the difference are -Inf at",
        "it came in with a constant of the program",
        "mark what is left out with a large finite number instead of Inf",
    ),
    ("a lattice with unreachable cells", "a divergence between two masked distributions"): (
        "-Inf minus -Inf gave NaN in the derivative of logaddexp",
        "both operands of the derivative of logaddexp are -Inf at 6 of 6 places",
    ),
    ("entropy of masked logits", "a weight of 0 for a term that is Inf"): (
        "at all 6 bad places one factor is 0 and the other Inf",
    ),
    ("a masked matrix in a product", "entropy of masked logits"): ("one matrix holds Inf where the other holds 0",),
    ("label smoothing on a masked class", "a loss that overflows to Inf in a sum"): (
        "every Inf in the step comes from a constant",
        "reached the loss through aten.sum",
    ),
    ("label smoothing on a masked class", "entropy of masked logits"): (
        "any weight times Inf is Inf or NaN",
        "leave masked classes out of the sum",
    ),
    ("every key masked", "a row of +Inf in a softmax"): (
        "in which every position is masked",
        ", from sample 4",
        "1 of 6 rows are -inf everywhere, and exactly those rows",
        "softmax of such a row is 0/0",
        "give the row one valid key",
    ),
    ("a maximum over padding only", "logsumexp over padding only"): (
        "a maximum over a row in which every position is masked is -Inf",
        "18 of 18 rows that aten.amax was given are -inf everywhere, and it gave -Inf there",
        "aten.addmm was given that -Inf",
    ),
    ("logsumexp over padding only", "a maximum over padding only"): (
        "logsumexp over a row in which every position is masked is -Inf",
    ),
    ("logsumexp over padding only", "entropy of masked logits"): (
        "with 0 in the rows that are masked everywhere the step is finite",
        "x.masked_fill((x == -math.inf).all(dim, keepdim=True), 0.0), dim): verified",
    ),
    ("every key masked", "two masks of finfo.min"): ("with a masked softmax the step is finite",),
    ("logsumexp of a masked row", "label smoothing on a masked class"): (
        "over a row in which every position is masked is -Inf",
        "are -inf everywhere, and it gave -Inf there",
    ),
    ("a recurrence", "exp overflows"): (
        "multiplied its values by about",
        "at the same line gave",
        "the factor per round is",
    ),
    ("label smoothing on a masked class", "a row that a custom function leaves NaN"): (
        "that was put there on purpose (a mask) reached the loss",
    ),
    ("a temperature of 0.002", "log of zero"): ("stay in log space with logsumexp",),
    ("a masked matrix in a product", "label smoothing on a masked class"): ("; without those terms no entry is NaN",),
    ("a temperature of 0.002", "a temperature of 0.5 and a score of 1000"): (
        "the values were divided by 0.002",
        "before that they stay within 1",
        "a larger number than 0.002",
    ),
    ("a temperature of 0.002 before a softmax, two lines", "log of zero, two lines"): ("the values were divided by",),
    ("label smoothing on a masked class", "a weight of Inf that NumPy computed"): (
        "that was put there on purpose (a mask) reached the loss",
        "comes from a constant of the program; no operation made one",
    ),
    ("exp of sample 1 and a log of sample 4", "samples that fail one by one"): (
        "only sample 1 reaches it",
        "torch.exp(x.clamp(-22, 22)) in line",
    ),
    ("samples that fail one by one", "exp of sample 1 and a log of sample 4"): (
        "only samples 0, 1, 2, 3, 4, 5 and 2 others reach it",
    ),
    ("a masked row of sample 1 and an empty sample 4", "a maximum over padding only"): (
        "gave NaN, from sample 1\n",
        "nantrap.ops.masked_softmax(x, dim=dim) in line",
    ),
    ("sinh of 90", "exp overflows"): ("in float32 it overflows above 89.42",),
    ("exp overflows", "a power of 2"): (
        "torch.exp(x.clamp(max=22)): verified",
        "torch.exp(x.clamp(max=22)) in line",
    ),
    ("a product of nine factors in each row", "a product of fifty-four factors"): (
        "multiplies 9 factors above 1 with",
    ),
    ("a product of fifty-four factors", "a product of nine factors in each row"): (
        "multiplies 54 factors above 1 with",
    ),
    ("a product of nine factors in each row", "a recurrence"): (
        "these factors are 1e+05 on average, 1e+05 at most, and float32 ends",
        "add logarithms instead of multiplying",
    ),
    ("a power of -2", "a power of 2"): ("-2 to the power of 129 exceeds",),
    ("a power of 2", "a power of -2"): ("\n2 to the power of 129 exceeds",),
    ("a power of 2", "exp overflows"): (
        "at all 6 bad places power · log|base| is above 88.72",
        "with a bounded power the step is finite",
        "a base below 1 (a discount of 0.99",
        "torch.pow(a, b.clamp(max=32)) in line",
    ),
    ("a loop that grows in its last ten rounds only", "a recurrence"): (
        "multiplied its values by about 1e+04 in each of 10 rounds",
    ),
    ("a loop that squares", "a recurrence"): (
        "multiplied its values by more and more in each of",
        "the factor per round is 20.9 at first and 3.57e+10 at last",
    ),
    ("a recurrence", "a product of fifty-four factors"): ("normalise or gate the state in each round",),
    ("a masked matrix in a product", "Inf minus Inf in a matrix product"): (
        "zero times infinity gave NaN",
        "one matrix holds Inf where the other holds 0",
    ),
    ("entropy of logits that the batch masks", "entropy of masked logits"): (
        "it came in with batch[1] or a constant of the program (a mask)",
    ),
    ("entropy of masked logits", "entropy of logits that the batch masks"): (
        "it came in with a constant of the program",
    ),
    ("label smoothing on a class that the batch masks", "label smoothing on a masked class"): (
        "every Inf in the step comes from batch[1] or a constant of the program",
    ),
    ("label smoothing on a masked class", "label smoothing on a class that the batch masks"): (
        "every Inf in the step comes from a constant of the program",
    ),
    ("entropy of masked logits", "label smoothing on a masked class"): ("select instead of multiplying",),
    ("a maximum over padding only", "a masked row of sample 1 and an empty sample 4"): (
        "torch.amax(x.masked_fill((x == -math.inf).all(dim, keepdim=True), 0.0), dim) in line",
    ),
    ("entropy of masked logits", "an overflow times zero"): ("it came in with a constant of the program",),
    ("entropy of masked logits", "division by zero"): ("does not remove an Inf",),
    ("cosh overflows", "exp overflows"): ("cosh of ",),
    ("a recurrence", "a recurrence and a loss that grows"): ("growth inside the step, not between steps",),
}
