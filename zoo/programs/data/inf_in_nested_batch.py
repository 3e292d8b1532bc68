"""A dataloader divides by a sensor's gain; for one recording the gain is 0, and one channel of the sample arrives as Inf.
The GRU saturates, so the loss stays finite and only gradients show it. The batch is a nested dict. True cause: bad input data."""
import torch, torch.nn as nn

class Fusion(nn.Module):
    def __init__(s): super().__init__(); s.imu = nn.GRU(3, 8, batch_first=True); s.meta = nn.Linear(2, 8); s.head = nn.Linear(16, 2)
    def forward(s, b): return s.head(torch.cat([s.imu(b["sensors"]["imu"])[0][:, -1], torch.tanh(s.meta(b["meta"]))], -1))

def build():
    torch.manual_seed(0); model = Fusion(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        imu, gain = torch.randn(4, 6, 3, generator=g), torch.ones(4, 1, 3)
        if i == 2: gain[1, 0, 2] = 0.0
        batches.append({"sensors": {"imu": imu / gain}, "meta": torch.randn(4, 2, generator=g), "y": torch.tensor([0, 1, 0, 1])})
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=2, bad_path="sensors.imu[1]",
                           loss_finite_at_first_bad_step=True))
