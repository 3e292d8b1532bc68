"""Speech recognition: after two strided convolutions one transcript is longer than its input."""
import torch, torch.nn as nn, torch.nn.functional as F

class ASR(nn.Module):
    def __init__(s): super().__init__(); s.c1 = nn.Conv1d(4, 8, 3, 2, 1); s.c2 = nn.Conv1d(8, 8, 3, 2, 1); s.head = nn.Linear(8, 6)
    def forward(s, x): return F.log_softmax(s.head(F.relu(s.c2(F.relu(s.c1(x)))).transpose(1, 2)), -1)
def build():
    torch.manual_seed(0); model = ASR(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 4, 32, generator=g), torch.randint(1, 6, (3, 4), generator=g), torch.tensor([4, 3, 4])) for _ in range(3)]
    batches.append((torch.randn(3, 4, 32, generator=g), torch.tensor([[1, 2, 3, 4, 5, 1, 2, 3, 4]] * 3), torch.tensor([4, 9, 5])))
    def loss_fn(m, b):
        logp = m(b[0]).transpose(0, 1)
        return F.ctc_loss(logp, b[1], torch.full((3,), logp.shape[0]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", where="loss_fn", module="", phase="forward", op="aten._ctc_loss", first_bad_step=3, line="F.ctc_loss"))
