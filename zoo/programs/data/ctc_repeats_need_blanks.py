"""CTC: target length 4 fits input length 5 by count, but the repeats (7 7 7 7) need 3 blanks more. Label smoothing with log_softmax is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Rec(nn.Module):
    def __init__(s): super().__init__(); s.rnn = nn.GRU(6, 12); s.fc = nn.Linear(12, 9)
    def forward(s, x): return s.fc(s.rnn(x)[0]).log_softmax(-1)
def build(fix=None):
    torch.manual_seed(0); model = Rec(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        t = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 1]]); n = torch.tensor([3, 3, 3])
        if i == 2: t = torch.tensor([[1, 2, 3, 0], [7, 7, 7, 7], [7, 8, 1, 0]]); n = torch.tensor([3, 4, 3])
        if i == 2 and fix == "true": t[1] = torch.tensor([7, 8, 7, 8])
        batches.append((torch.randn(5, 3, 6, generator=g), t, n))
    def loss_fn(m, b):
        lp = m(b[0]); l = F.ctc_loss(lp, b[1], torch.full((3,), 5), b[2], blank=0)
        return l if fix == "innocent" else l - 0.01 * lp.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=2, sample=1,
                           loss_finite_at_first_bad_step=False, also=[], why="sample 1 needs 4 + 3 frames, has 5"))
