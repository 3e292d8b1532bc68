"""CONTROL: house prices in raw cents (1e7): loss 1e14, gradients 1e9 and more, Adam with lr 300; ugly but finite and falling."""
import torch, torch.nn as nn

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)); opt = torch.optim.Adam(model.parameters(), lr=300.0)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(20): x = torch.rand(32, 6, generator=g); batches.append((x, (x[:, :1] * 3 + 1) * 1e7))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=20, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
