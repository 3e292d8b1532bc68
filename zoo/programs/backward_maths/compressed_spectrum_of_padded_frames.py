"""Speech enhancement with a power-law compressed spectral loss |S|^0.3. Batches are zero-padded and the loss multiplies padded frames
by 0, so their value cannot matter; but for silent padding the model's output (no biases) is exactly 0, the slope of x^0.3 at 0 is
infinite, and 0 * inf is NaN in the backward.
True cause: an unselected (masked) branch with an infinite derivative. TRAP: forward finite, padding 'is masked', batch finite."""
import torch
import torch.nn as nn


class PowerLaw(nn.Module):
    def __init__(self, power=0.3):
        super().__init__()
        self.power = power

    def forward(self, mag):
        return mag.pow(self.power)


class Enhancer(nn.Module):
    def __init__(self, bins=9):
        super().__init__()
        self.gain = nn.Linear(bins, bins, bias=False)
        self.compress = PowerLaw()

    def forward(self, mag):
        return self.compress(mag * torch.sigmoid(self.gain(mag)))


def masked_l1(pred, target, lengths):
    frames = torch.arange(pred.shape[1])[None] < lengths[:, None]
    return ((pred - target).abs().mean(-1) * frames).sum() / frames.sum()


def build():
    torch.manual_seed(0)
    model = Enhancer()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        lengths = torch.tensor([12, 12, 12])
        if i >= 2:
            lengths = torch.tensor([12, 9, 12])
        mag = torch.rand(3, 12, 9, generator=g) + 0.05
        mag = mag * (torch.arange(12)[None] < lengths[:, None])[..., None]
        clean = torch.rand(3, 12, 9, generator=g) * 0.7
        batches.append({"noisy": mag, "clean": clean, "lengths": lengths})

    def loss_fn(m, b):
        return masked_l1(m(b["noisy"]), b["clean"].pow(0.3), b["lengths"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="compress", phase="backward", op="aten.mul", first_bad_step=2,
                           node="PowBackward0", loss_finite_at_first_bad_step=True, trap=True,
                           also=dict(op=["aten.pow"])))
