"""Speech with subsampling: 12 frames become 3, but one transcript has 5 characters. No alignment exists, the CTC loss is Inf.
True cause: the target is longer than the (subsampled) input."""
import torch, torch.nn as nn

class ASR(nn.Module):
    def __init__(s): super().__init__(); s.sub = nn.Conv1d(6, 16, 4, stride=4); s.head = nn.Linear(16, 8)
    def forward(s, x): return s.head(torch.relu(s.sub(x.transpose(1, 2))).transpose(1, 2)).log_softmax(-1)

def build():
    torch.manual_seed(0); model = ASR(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        y = torch.stack([torch.randperm(7, generator=g)[:5] + 1 for _ in range(3)])
        batches.append((torch.randn(3, 12, 6, generator=g), y, torch.tensor([2, 5 if i == 3 else 3, 1])))
    def loss_fn(m, b):
        return nn.functional.ctc_loss(m(b[0]).transpose(0, 1), b[1], torch.full((3,), 3), b[2], reduction="mean")
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=3))
