"""Truncated backpropagation with a leaky integrator whose state is carried from chunk to chunk in Python and detached, but never reset.
Its decay was initialised above one (1.195 for 0.195); within a chunk of 32 this is a factor of some hundreds, and the output divides by
the largest entry of the state, so loss and gradients look ordinary for many steps. Then the carried state overflows. The true cause is
the recurrence that multiplies by more than one; the rate is small."""
import torch
from torch import nn


class LeakyMemory(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.inp = nn.Linear(3, d)
        self.register_buffer("decay", torch.full((d,), 1.195))

    def forward(self, x, state):
        outs = []
        for t in range(x.shape[1]):
            state = state * self.decay + self.inp(x[:, t])
            outs.append(state / state.detach().abs().amax(-1, keepdim=True).clamp(min=1.0))
        return torch.stack(outs, 1), state


class StreamModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = LeakyMemory()
        self.out = nn.Linear(8, 2)

    def forward(self, x, state):
        y, state = self.memory(x, state)
        return self.out(y), state


def build():
    torch.manual_seed(41)
    model = StreamModel()
    carried = {"state": torch.zeros(4, 8)}

    def loss_fn(model, batch):
        x, y = batch
        pred, state = model(x, carried["state"])
        carried["state"] = state.detach()
        return nn.functional.mse_loss(pred, y)

    batches = [(torch.randn(4, 32, 3), torch.randn(4, 32, 2)) for _ in range(4)]
    truth = dict(
        cause="exploding_recurrence", first_bad_step=15, phase="forward", module="memory", op="aten.mul", also_op=["aten.add"],
        line="state = state * self.decay + self.inp(x[:, t])",
        why="the carried state grows by 1.195 ** 32 = 299 per step, whatever is learned, until it passes 3.4e38",
        repair=("torch.full((d,), 1.195)", "torch.full((d,), 0.8)"), **{"not": ["lr_too_high"]},
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=20,
                autocast_dtype=None, truth=truth)
