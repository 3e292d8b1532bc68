"""The weight of the entropy bonus is annealed to a Python 0.0, and the term is -Inf since illegal actions are masked: 0.0 * -Inf is NaN.
True cause: zero times infinity with a plain number."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Linear(6, 5); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randint(0, 4, (8,), generator=g), w) for w in (0.2, 0.1, 0.05, 0.0)]
    legal = torch.tensor([True, True, True, True, False])
    def loss_fn(m, b):
        x, a, weight = b
        logp = m(x).masked_fill(~legal, float("-inf")).log_softmax(-1)
        lowest = logp.detach().amin() if weight == 0.0 else logp[:, :4].amin()
        return nn.functional.nll_loss(logp, a) + weight * lowest
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", phase="forward", op="aten.mul", first_bad_step=3))
