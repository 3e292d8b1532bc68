"""A speech batch (a dict) in which one feature frame of one sample is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F

class Enc(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv1d(6, 8, 3, padding=1); s.rnn = nn.GRU(8, 8, batch_first=True); s.head = nn.Linear(8, 4)
    def forward(s, input_features, **_): h, _ = s.rnn(F.gelu(s.conv(input_features)).transpose(1, 2)); return s.head(h[:, -1])
def build():
    torch.manual_seed(0); model = Enc(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(input_features=torch.randn(5, 6, 9, generator=g), labels=torch.randint(0, 4, (5,), generator=g)) for _ in range(4)]; batches[3]["input_features"][3, :, 2] = float("nan")
    def loss_fn(m, b): return F.cross_entropy(m(**b), b["labels"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op=None, first_bad_step=3))
