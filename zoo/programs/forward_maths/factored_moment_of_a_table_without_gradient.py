"""A copied Adafactor normalises the row moments by their mean without an epsilon. From the fourth batch on a second table takes part in the graph, but its rows are
masked out: the gradient is all zeros, the mean of the row moments is zero.
After https://github.com/microsoft/LLM2CLIP/issues/64 (the factored estimate divides by the mean of the row moments, which can be 0).
True cause: division by zero in the optimizer."""
import torch
from torch import nn


class Adafactor(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, decay=-0.8, clip=1.0):
        super().__init__(params, dict(lr=lr, decay=decay, clip=clip))

    @staticmethod
    def _approx_sq_grad(row, col):
        r_factor = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
        c_factor = col.unsqueeze(-2).rsqrt()
        return torch.mul(r_factor, c_factor)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, sq = self.state[p], p.grad.square()
                if not state:
                    state["step"] = 0
                    if p.ndim == 2:
                        state["row"], state["col"] = torch.zeros(p.shape[0]), torch.zeros(p.shape[1])
                    else:
                        state["full"] = torch.zeros_like(p)
                state["step"] += 1
                beta = 1.0 - state["step"] ** group["decay"]
                if p.ndim == 2:
                    state["row"].mul_(beta).add_(sq.mean(-1), alpha=1 - beta)
                    state["col"].mul_(beta).add_(sq.mean(-2), alpha=1 - beta)
                    update = self._approx_sq_grad(state["row"], state["col"]) * p.grad
                else:
                    state["full"].mul_(beta).add_(sq, alpha=1 - beta)
                    update = p.grad / (state["full"].sqrt() + 1e-30)
                update.div_((update.square().mean().sqrt() / group["clip"]).clamp(min=1.0))
                p.sub_(group["lr"] * update)


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.images = nn.Linear(12, 8, bias=False), nn.Linear(6, 8, bias=False)
        self.score = nn.Bilinear(8, 8, 1)

    def forward(self, words, images, has_image):
        w = self.words(words)
        if images is not None:
            w = w + has_image * self.images(images)
        return self.score(w, w).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = Retriever()
    opt = Adafactor([p for p in model.parameters() if p.ndim <= 2])
    g = torch.Generator().manual_seed(3)
    batches = []
    for i in range(6):
        images = torch.randn(8, 6, generator=g) if i >= 3 else None
        has = torch.zeros(8, 1) if i == 3 else torch.ones(8, 1)
        batches.append((torch.randn(8, 12, generator=g) + 0.3, images, has, torch.randn(8, generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.smooth_l1_loss(m(*b[:3]), b[3]), steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           grads_finite=True, poisoned_state=["param images.weight"], line="r_factor = (row / row.mean(",
                           why="the image projection gets a gradient of zeros in its first step, so its row moments and their mean are zero"))
