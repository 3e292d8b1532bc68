"""Delayed scaling: an activation is multiplied with a scale taken from the largest values of the last four steps and stored as float8 e5m2.
When an outlier arrives, the product exceeds 57344 and the cast gives inf.
After https://github.com/pytorch/torchtitan/issues/3109 (the amax of float8 is wrong for the current activation; NaN loss from step 3).
True cause: overflow of a narrow format in forward; the values are harmless in float32."""
import torch
from torch import nn

E5M2_MAX = 57344.0


class Float8Activation(nn.Module):
    def __init__(self, history=4, margin=1.1):
        super().__init__()
        self.register_buffer("amax_history", torch.full((history,), 4.0))
        self.margin = margin

    def forward(self, x):
        scale = E5M2_MAX / (self.amax_history.max() * self.margin)
        with torch.no_grad():
            q = (x * scale).to(torch.float8_e5m2)
            restored = q.float() / scale
            self.amax_history = torch.cat([self.amax_history[1:], x.abs().amax().view(1)])
        return x + (restored - x).detach()


class Float8MLP(nn.Module):
    def __init__(self, d, hidden, out):
        super().__init__()
        self.fc1, self.act, self.quant, self.fc2 = nn.Linear(d, hidden), nn.ReLU(), Float8Activation(), nn.Linear(hidden, out)

    def forward(self, x):
        return self.fc2(self.quant(self.act(self.fc1(x))))


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8, elementwise_affine=False), Float8MLP(8, 24, 8), Float8MLP(8, 24, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(14)
    burst = nn.Parameter(torch.zeros(()), requires_grad=False)

    def stream():
        for i in range(8):
            x, y = torch.randn(12, 8, generator=g), torch.randint(0, 3, (12,), generator=g)
            burst.fill_(30.0 if i == 5 else 1.0)
            yield x, y

    def loss_fn(m, b):
        h = m[0](b[0])
        h = torch.cat([h[:4] * burst, h[4:]])                   # a prompt format with a massive activation
        return nn.functional.cross_entropy(m[2](m[1](h)), b[1])

    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="fp16_forward_overflow", also=("input_out_of_scale",), module="1.quant", phase="forward", op="aten._to_copy", first_bad_step=5,
                           line="q = (x * scale).to(torch.float8_e5m2)", why="the scale fits the last four steps; 57344 is exceeded twentyfold, and the cast to e5m2 is inf there"))
