"""A recurrent forecaster of counts is trained with the Nesterov settings of a convolutional model: lr 0.25, momentum 0.99, no clipping.
After https://github.com/facebookresearch/fairseq-lua/issues/38 (fconv parameters with blstm: loss and perplexity become nan after a few epochs).
True cause: the learning rate is too high for this momentum."""
import torch
import torch.nn as nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.head(h).squeeze(-1)


def make_batches(n, rng):
    for _ in range(n):
        x = torch.randn(6, 12, 5, generator=rng)
        yield {"x": x, "y": x.cumsum(1)[..., 0].abs().round()}


def build():
    torch.manual_seed(5)
    model = Tagger()
    opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.99, nesterov=True)

    def loss_fn(model, batch):
        log_rate = model(batch["x"])
        return torch.mean(torch.exp(log_rate) - batch["y"] * log_rate)

    return dict(model=model, optimizer=opt, batches=list(make_batches(10, torch.Generator().manual_seed(6))), loss_fn=loss_fn, steps=80, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", also=("exp_overflow",), op="aten.exp", first_bad_step=13, line="torch.exp(log_rate)"))
