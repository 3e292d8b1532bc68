"""A neural HMM trained by the forward algorithm in probability space. Ordinary sequences have 20 symbols; the one of batch 3 has 300,
its probability underflows to exactly 0 in float32, and log(0) is -inf.
True cause: log of zero (no scaling of the forward variables). Nothing was non-finite before the logarithm."""
import torch
import torch.nn as nn


class NeuralHmm(nn.Module):
    def __init__(self, states=4, symbols=6):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(states))
        self.trans = nn.Parameter(torch.randn(states, states) * 0.3)
        self.emit = nn.Parameter(torch.randn(states, symbols) * 0.3)

    def forward(self, seq):
        trans, emit = self.trans.softmax(-1), self.emit.softmax(-1)
        alpha = self.start.softmax(-1)[None] * emit[:, seq[:, 0]].t()
        for t in range(1, seq.shape[1]):
            alpha = (alpha @ trans) * emit[:, seq[:, t]].t()
        return alpha.sum(-1)


def build():
    torch.manual_seed(0)
    model = NeuralHmm()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 6, (5, 300 if i == 3 else 20), generator=g) for i in range(5)]

    def loss_fn(m, seq):
        return -torch.log(m(seq)).mean() / seq.shape[1]

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=3))
