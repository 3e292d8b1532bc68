"""Click model with Adagrad. The accumulator was stored as int8 to save space and read back signed: the largest sums came back
negative. sqrt of a negative sum is NaN; weights, gradients and batch are finite.
True cause: corrupt optimizer state; with a fresh state the run is finite."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, 6) for n in (12, 9, 5)])
        self.mlp = nn.Sequential(nn.Linear(18 + 4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, cats, dense):
        e = [t(cats[:, i]) for i, t in enumerate(self.tables)]
        return self.mlp(torch.cat(e + [dense], -1)).squeeze(-1)


def through_int8(t):
    scale = t.abs().max() / 200.0                      # meant for uint8
    return (t / scale).to(torch.uint8).view(torch.int8).to(torch.float32) * scale


def build():
    torch.manual_seed(0)
    model = ClickModel()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.stack([torch.randint(0, n, (32,), generator=g) for n in (12, 9, 5)], 1), torch.randn(32, 4, generator=g),
                torch.randint(0, 2, (32,), generator=g).float()) for _ in range(8)]

    def loss_fn(m, b):
        return F.binary_cross_entropy_with_logits(m(b[0], b[1]), b[2])

    for b in batches[:4]:                              # yesterday's run
        opt.zero_grad()
        loss_fn(model, b).backward()
        opt.step()
    opt.zero_grad()
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][3]["sum"] = through_int8(saved["state"][3]["sum"])
    opt.load_state_dict(saved)
    return dict(model=model, optimizer=opt, batches=batches[4:], loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.sqrt", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, param="mlp.0.weight"))
