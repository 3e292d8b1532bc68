"""CONTROL: a warm restart multiplies one group's lr by 1000 (1e-3 -> 1), the head runs at lr=20 on a loss scaled by 1e-3 (so 0.02 in effect), one hard batch makes the loss spike; all finite, it recovers."""
import torch, torch.nn as nn

def build(fix=None):
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)); opt = torch.optim.SGD([dict(params=model[0].parameters(), lr=1e-3), dict(params=model[2].parameters(), lr=20.0)])
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(16, 8, generator=g), torch.randn(16, 1, generator=g) * (200.0 if k == 9 else 1.0), k) for k in range(20)]
    def loss_fn(m, b):
        if b[2] == 6: opt.param_groups[0]["lr"] = 1.0
        return 1e-3 * nn.functional.huber_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=20, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
