"""Between two steps the exponent bits of one weight flip in memory: the optimizer left it finite, nothing wrote it, and the next forward reads
NaN. Batches, gradients and optimizer state are in order.
True cause: a hardware fault in the memory of 2.weight (played by the data loader, past PyTorch's version counter)."""
import numpy as np, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(7, 10), nn.SiLU(), nn.Linear(10, 2)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); data = [(torch.randn(6, 7, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(6)]
    def stream():
        for i, batch in enumerate(data):
            if i == 3: model[2].weight.detach().numpy().view(np.int32)[1, 4] |= 0x7F800000
            yield batch
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="hardware_fault", module="2", phase="state", op="aten.addmm", first_bad_step=3, state="2.weight"))
