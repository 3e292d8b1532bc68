"""Sales forecasting: the pipeline took log of the raw counts, a day with zero sales became -inf. Batch = list of ragged tensors.
Real kind: "LSTM returns nan: np.log(0) in my preprocessing".
True cause: -inf in one series of the batch (before forward)."""
import torch, torch.nn as nn

class Forecaster(nn.Module):
    def __init__(s): super().__init__(); s.lstm = nn.LSTM(1, 12, batch_first=True); s.head = nn.Linear(12, 1)
    def forward(s, series):
        p = nn.utils.rnn.pack_sequence([t[:-1, None] for t in series], enforce_sorted=False)
        _, (h, _) = s.lstm(p); return s.head(h[-1]).squeeze(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Forecaster(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(8); batches = []
    for i in range(7):
        counts = [torch.randint(1, 50, (n,), generator=g).float() for n in (9, 14, 6, 11)]
        if i == 4: counts[1][3] = 0.0                              # shop closed that day
        batches.append([c.log() for c in counts])
    def loss_fn(m, series): return (m(series) - torch.stack([t[-1] for t in series])).abs().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=4, bad_path="[1]"))
