"""CONTROL: CTC with zero_infinity=True. Some clips are too short for their text; their loss and gradient are set to zero on purpose."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 16, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, 9)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1)


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(8):
        frames, chars = torch.tensor([20, 18, 20]), torch.tensor([5, 6, 7])
        if i in (3, 6):
            frames[1] = 4
        batches.append((torch.randn(3, 20, 6, generator=g), torch.randint(1, 9, (3, 7), generator=g), frames, chars))

    def loss_fn(m, b):
        x, y, frames, chars = b
        return F.ctc_loss(m(x), y, frames, chars, zero_infinity=True)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
