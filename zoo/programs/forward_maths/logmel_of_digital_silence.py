"""Keyword spotting with a learned filterbank: log(power) without an offset; a clip that starts with digital silence has power 0.
Real: ESPnet / torchaudio threads ("log mel gives -inf, loss nan"). True cause: log of an exact zero."""
import torch, torch.nn as nn

class LogFilterbank(nn.Module):
    def __init__(s): super().__init__(); s.fb = nn.Conv1d(1, 10, 32, stride=16, bias=False)
    def forward(s, wav): return torch.log(s.fb(wav[:, None]).square())
class KWS(nn.Module):
    def __init__(s):
        super().__init__(); s.frontend = LogFilterbank(); s.conv = nn.Conv1d(10, 16, 3, padding=1); s.norm = nn.InstanceNorm1d(16); s.cls = nn.Linear(16, 5)
    def forward(s, wav): return s.cls(torch.relu(s.norm(s.conv(s.frontend(wav)))).mean(-1))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = KWS(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    batches = [(torch.randn(4, 320, generator=g) * 0.1, torch.randint(0, 5, (4,), generator=g)) for _ in range(8)]
    batches[6][0][1, :100] = 0.0
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="frontend", phase="forward", op="aten.log", first_bad_step=6))
