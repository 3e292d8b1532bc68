"""Dead codes are reset through `.data` to random samples between steps: finite values, a healthy run."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    data = [torch.randn(6, 4, generator=g) for _ in range(6)]
    def stream():
        for i, x in enumerate(data):
            if i % 2: model[0].weight.data[1] = x[0]
            yield x
    def loss_fn(m, x): return (m(x) - x).square().mean()
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=6, autocast_dtype=None, truth=dict(cause="benign"))
