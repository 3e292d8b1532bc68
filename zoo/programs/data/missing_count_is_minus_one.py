"""A negative-binomial loss on counts; missing counts are -1 in one file, and lgamma(-1 + 1) is infinite.
After https://github.com/OmicsML/dance/issues/166 (zero total counts call torch.lgamma).
True cause: the target is outside the range of the loss."""
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, genes=6):
        super().__init__()
        self.rate, self.log_r = nn.Linear(3, genes), nn.Parameter(torch.zeros(genes))

    def forward(self, z):
        return nn.functional.softplus(self.rate(z)) + 1e-4, self.log_r.exp()


def nb_nll(x, mu, r):
    log_p = torch.lgamma(x + r) - torch.lgamma(r) - torch.lgamma(x + 1)
    log_p = log_p + r * torch.log(r / (r + mu)) + x * torch.log(mu / (r + mu))
    return -log_p.sum(1).mean()


def build():
    torch.manual_seed(0)
    model = Decoder()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    cells = [(torch.randn(5, 3, generator=g), torch.poisson(torch.full((5, 6), 3.0), generator=g)) for _ in range(4)]
    cells[2][1][4, 1] = -1
    return dict(model=model, optimizer=opt, batches=cells, loss_fn=lambda m, b: nb_nll(b[1], *m(b[0])), steps=4, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", also=("bad_input_data",), module="loss", phase="forward", op="aten.lgamma", first_bad_step=2, line="- torch.lgamma(x + 1)", sample=4))
