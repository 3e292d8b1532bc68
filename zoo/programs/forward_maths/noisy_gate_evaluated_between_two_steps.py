"""A mixture of experts with a noisy gate keeps a running estimate of the load of its experts for a balance term. Every third step a validation batch is routed in
evaluation mode, in which the deviation of the noise is multiplied by zero: the estimated probabilities divide by it.
After https://github.com/laekov/fastmoe/issues/180 (noise_stddev is zero when self.training is False, and the load is nan).
True cause: division by a deviation of zero, in the evaluation."""
import torch
import torch.nn.functional as F
from torch import nn


class NoisyGate(nn.Module):
    def __init__(self, d, experts):
        super().__init__()
        self.clean, self.noise = nn.Linear(d, experts, bias=False), nn.Linear(d, experts, bias=False)
        self.register_buffer("load", torch.full((experts,), 1.0 / experts))

    def forward(self, x, eps):
        clean = self.clean(x)
        stddev = (F.softplus(self.noise(x)) + 1e-2) * self.training
        noisy = clean + eps * stddev
        threshold = noisy.topk(2, dim=-1).values[:, 1:]
        probability = 0.5 * (1 + torch.erf((clean - threshold) / stddev / 2 ** 0.5))
        self.load = 0.9 * self.load + 0.1 * probability.mean(0).detach()
        return noisy.softmax(-1), probability


class MoEClassifier(nn.Module):
    def __init__(self, d=8, experts=4, classes=3):
        super().__init__()
        self.gate = NoisyGate(d, experts)
        self.experts = nn.ModuleList(nn.Linear(d, classes) for _ in range(experts))

    def forward(self, x, eps):
        weights, probability = self.gate(x, eps)
        out = torch.stack([e(x) for e in self.experts], -1)
        return (out * weights[:, None]).sum(-1), probability


def build():
    torch.manual_seed(0)
    model = MoEClassifier()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(5)
    valid = torch.randn(10, 8, generator=g)
    train = [(k, torch.randn(12, 8, generator=g), torch.randint(0, 3, (12,), generator=g), torch.randn(12, 4, generator=g)) for k in range(6)]
    history = []

    def loss_fn(m, batch):
        k, x, y, eps = batch
        if k % 3 == 2:
            m.eval()
            with torch.no_grad():
                history.append(m(valid, torch.zeros(10, 4))[0].softmax(-1).amax(-1).mean().item())
            m.train()
        logits, probability = m(x, eps)
        return F.cross_entropy(logits, y) + 0.01 * (probability.mean(0) * m.gate.load).sum()

    return dict(model=model, optimizer=opt, batches=train, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("state_overwritten",), module="gate", phase="forward", op="aten.div", first_bad_step=2, poisoned_state=["gate.load"],
                           line="probability = 0.5 * (1 + torch.erf((clean - threshold) / stddev", why="in evaluation mode the deviation is zero; at the threshold it is 0 / 0, and the load keeps the NaN"))
