"""CONTROL: log probabilities of forbidden tokens are -inf and never gathered."""
import torch, torch.nn as nn, torch.nn.functional as F

def build():
    torch.manual_seed(0); model = nn.Linear(4, 6); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 4, generator=g), torch.randint(0, 4, (5,), generator=g)) for _ in range(4)]
    def loss_fn(m, b): z = m(b[0]).clone(); z[:, 4:] = float("-inf"); return F.nll_loss(F.log_softmax(z, -1), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
