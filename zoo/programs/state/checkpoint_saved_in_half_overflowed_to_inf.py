"""Continue training a tabular model from a checkpoint that was stored in float16 to save space.

What goes wrong: the output layer predicts amounts of money and has weights above 65504, which became
inf in the float16 file. The damage is in the loaded state, before the first step.
True cause: the checkpoint was saved in float16, where a weight above 65504 became inf; the model starts with
an inf weight."""
import io

import torch
from torch import nn


class AmountNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.fc1 = nn.Linear(6, 24)
        self.fc2 = nn.Linear(24, 24)
        self.amount = nn.Linear(24, 1)

    def forward(self, x):
        h = torch.tanh(self.fc1(self.norm(x)))
        return self.amount(torch.tanh(self.fc2(h))).squeeze(1)


def save_small(model, file):
    state = {k: (v.half() if v.is_floating_point() else v) for k, v in model.state_dict().items()}
    torch.save(state, file)


def yesterdays_checkpoint():
    torch.manual_seed(0)
    old = AmountNet()
    with torch.no_grad():
        old.amount.weight.mul_(1e5)
        old.amount.weight[0, 5] = 81234.0
        old.amount.bias.fill_(250.0)
    file = io.BytesIO()
    save_small(old, file)
    file.seek(0)
    return file


def build():
    torch.manual_seed(1)
    model = AmountNet()
    model.load_state_dict(torch.load(yesterdays_checkpoint()))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = []
    for _ in range(10):
        x = torch.randn(16, 6)
        batches.append((x, 3e4 * x[:, 0]))

    def loss_fn(model, batch):
        x, y = batch
        return nn.functional.smooth_l1_loss(model(x), y)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", also=("fp16_forward_overflow",), first_bad_step=0, phase="state",
                           module="amount", op="state", also_op=("aten.addmm",), line="model.load_state_dict(", param="amount.weight",
                           repair=("(v.half() if v.is_floating_point() else v)", "v")))
