"""Speech recogniser with a stride-4 front-end. One transcript fits the number of frames, but its doubled letters need blanks between
them, so no alignment exists (length + repeats > frames) and CTC returns Inf.
True cause: infeasible CTC alignment of sample 2; no data value is out of range."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class ASR(nn.Module):
    def __init__(s):
        super().__init__(); s.sub = nn.Conv1d(8, 16, 4, stride=4); s.rnn = nn.GRU(16, 12, bidirectional=True); s.head = nn.Linear(24, 7)
    def forward(s, x):
        h = torch.relu(s.sub(x)).permute(2, 0, 1); return s.head(s.rnn(h)[0]).log_softmax(-1)

def build():
    torch.manual_seed(0); model = ASR(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(7); batches = []
    for i in range(7):
        frames = torch.tensor([48, 40, 28, 36]); n = torch.tensor([6, 5, 5, 4])
        y = torch.stack([torch.randperm(6, generator=g) + 1 for _ in range(4)])
        if i == 4: n[2] = 6; y[2] = torch.tensor([2, 5, 5, 1, 3, 3])        # 6 letters + 2 repeats need 8 of 7 frames
        batches.append(dict(wav=torch.randn(4, 8, 48, generator=g), frames=frames, text=y, n=n))
    def loss_fn(m, b):
        return nn.functional.ctc_loss(m(b["wav"]), b["text"], b["frames"] // 4, b["n"], blank=0, reduction="mean")
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", where="loss_fn", phase="forward", op="aten._ctc_loss", first_bad_step=4,
                           sample=2))
