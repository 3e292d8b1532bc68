"""Weights in float16, a hand-made loss scale of 2**22 that is never lowered: the gradients overflow.
True cause: misuse of the loss scale."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).half(); opt = torch.optim.SGD(model.parameters(), lr=1e-9)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(8, 8, generator=g).half(), torch.randint(0, 4, (8,), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1]) * 2.0 ** 22
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="loss_scale_misuse", module="2", phase="backward", op="?", first_bad_step=0))
