"""An optimizer that keeps every neuron on a sphere divides the weights by their norm after each update. The last layer of an adapter is initialised with zeros, and in
its first step the input of that layer is zero as well, so that the row stays zero.
After https://github.com/kozistr/pytorch_optimizer/issues/120 (p.div_(neuron_norm(p)) needs an epsilon).
True cause: division by a norm of zero in the optimizer."""
import torch
from torch import nn


def neuron_norm(p):
    return p.norm(dim=1, keepdim=True) if p.ndim > 1 else p.abs()


class Nero(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, beta=0.999):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["step"], st["sq"], st["scale"] = 0, torch.zeros_like(neuron_norm(p)), neuron_norm(p).mean()
                st["step"] += 1
                st["sq"].mul_(group["beta"]).add_((1 - group["beta"]) * neuron_norm(p.grad) ** 2)
                normed = p.grad / ((st["sq"] / (1 - group["beta"] ** st["step"])).sqrt() + 1e-8)
                p.sub_(group["lr"] * st["scale"].clamp(min=0.01) * normed)
                if p.ndim > 1:
                    p.div_(neuron_norm(p))


class ControlAdapter(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.down, self.zero = nn.Linear(d, 6), nn.Linear(6, d, bias=False)
        nn.init.zeros_(self.zero.weight)

    def forward(self, control):
        return self.zero(torch.relu(self.down(control)) * control.abs().amax(-1, keepdim=True))


class Controlled(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.trunk, self.adapter, self.head = nn.Linear(d, d), ControlAdapter(d), nn.Linear(d, 3)

    def forward(self, x, control):
        return self.head(torch.tanh(self.trunk(x)) + self.adapter(control))


def build():
    torch.manual_seed(0)
    model = Controlled()
    opt = Nero(model.parameters())
    g = torch.Generator().manual_seed(5)
    batches = []
    for i in range(4):
        control = torch.zeros(7, 8) if i == 0 else torch.randn(7, 8, generator=g)      # the first pages have no edge map
        batches.append((torch.randn(7, 8, generator=g), control, torch.randint(0, 3, (7,), generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0], b[1]), b[2]), steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="optimizer", phase="optimizer", op="aten.div_", also_op=("aten.div",), first_bad_step=0,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["param adapter.zero.weight"], line="p.div_(neuron_norm(p))",
                           why="the rows of the zero layer are still zero after the first update"))
