"""Speech CTC: in batch 3 the target is SHORTER than the input (9 < 10 frames) but has repeated characters, which need blanks
between them: 9 + 4 > 10, no alignment exists and the loss is Inf."""
import torch, torch.nn as nn
class Acoustic(nn.Module):
    def __init__(s, f=12, c=10):
        super().__init__(); s.conv = nn.Conv1d(f, 24, 3, stride=2, padding=1); s.rnn = nn.GRU(24, 16, bidirectional=True); s.fc = nn.Linear(32, c); s.ctc = nn.CTCLoss(blank=0)
    def forward(s, x, tgt, tl):
        h = torch.relu(s.conv(x.transpose(1, 2))).permute(2, 0, 1); h, _ = s.rnn(h)
        lp = s.fc(h).log_softmax(-1); il = torch.full((x.shape[0],), lp.shape[0], dtype=torch.long)
        return s.ctc(lp, tgt, il, tl)
def build():
    torch.manual_seed(0); model = Acoustic(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(0); bs = []
    for i in range(6):
        T = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9], [2, 4, 6, 8, 1, 3, 5, 7, 9], [9, 8, 7, 6, 5, 4, 3, 2, 1]])
        if i == 3: T[1] = torch.tensor([2, 2, 5, 5, 7, 7, 3, 3, 1])
        bs.append((torch.randn(3, 20, 12, generator=g), T, torch.tensor([9, 9, 9])))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="ctc", phase="forward", op="aten._ctc_loss", first_bad_step=3,
                           loss_finite_at_first_bad_step=False, why="9 labels with 4 repeats need 13 frames, the input has 10."))
