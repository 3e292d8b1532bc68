"""A hand-written RMSNorm (the reference of a fused kernel). Forward has eps; backward recomputes the normaliser from the saved input
and leaves eps out. Batch 3 holds a left-padded sequence whose padding embedding is zero: the mean square of these rows is zero and
backward computes 0 / 0. The true cause is a division by zero in the backward of the kernel."""
import torch
from torch import nn


class RMSNormFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        inv = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight)
        return x * inv * weight

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rms = x.pow(2).mean(-1, keepdim=True).sqrt()
        x_hat = x / rms
        dxh = dy * weight
        dx = (dxh - x_hat * (dxh * x_hat).mean(-1, keepdim=True)) / rms.clamp(min=1e-6)
        return dx, (dy * x_hat).sum((0, 1)), None


class FusedRMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return RMSNormFn.apply(x, self.weight, 1e-6)


class LM(nn.Module):
    def __init__(self, vocab=20, d=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.norm = FusedRMSNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, vocab))

    def forward(self, ids):
        return self.ff(self.norm(self.emb(ids)))


def loss_fn(model, ids):
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def build():
    torch.manual_seed(10)
    model = LM()
    batches = [torch.randint(1, 20, (4, 9)) for _ in range(6)]
    batches[3][1, :4] = 0
    truth = dict(
        cause="division_by_zero", also=["singular_gradient_at_zero", "backend_or_kernel_bug"], first_bad_step=3, phase="backward", module="norm", op="aten.div",
        line="x_hat = x / rms", loss_finite_at_first_bad_step=True, sample=1,
        why="the rows of the padding token are zero: backward divides zero by a norm of zero, which forward avoids with eps",
        repair=("x.pow(2).mean(-1, keepdim=True).sqrt()", "(x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()"),
    )
    return dict(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=6,
                autocast_dtype=None, truth=truth)
