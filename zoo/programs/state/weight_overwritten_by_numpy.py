"""Pruning between two steps writes through NumPy into a weight: magnitude / 0 for a row that is all zeros. PyTorch counts no write.
True cause: the program overwrote its own weight."""
import numpy as np, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1); data = [(torch.randn(8, 6, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(6)]
    def stream():
        for i, b in enumerate(data):
            if i == 4:
                w = model[2].weight.detach().numpy(); w[1] = 0.0
                with np.errstate(all="ignore"): w[1] /= np.abs(w[1]).max()
            yield b
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="state_overwritten", module="2", phase="state", op="aten.addmm", first_bad_step=4, state="2.weight",
                           never_said=["replace the device", "nothing wrote it"]))
