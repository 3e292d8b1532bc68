"""Speech recogniser with 4x convolutional subsampling: a fast speaker's transcript is longer than the subsampled input.
Real: many ("CTC loss inf"). True cause: no valid alignment, target length > input length."""
import torch, torch.nn as nn

class ASR(nn.Module):
    def __init__(s):
        super().__init__(); s.sub = nn.Sequential(nn.Conv1d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv1d(16, 16, 3, 2, 1), nn.ReLU())
        s.rnn = nn.LSTM(16, 12, batch_first=True); s.out = nn.Linear(12, 10); s.ctc = nn.CTCLoss()
    def forward(s, feats, flen, tgt, tlen):
        h = s.rnn(s.sub(feats).transpose(1, 2))[0]; lp = s.out(h).log_softmax(-1).transpose(0, 1)
        return s.ctc(lp, tgt, (flen + 3) // 4, tlen)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = ASR(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        flen = torch.tensor([48, 40, 44]); tlen = torch.randint(2, 5, (3,), generator=g)
        if i == 5: flen[1] = 20; tlen[1] = 7                         # 5 frames for 7 letters
        tgt = torch.stack([torch.randperm(9, generator=g)[:8] + 1 for _ in range(3)])
        batches.append((torch.randn(3, 8, 48, generator=g), flen, tgt, tlen))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="ctc", phase="forward", op="aten._ctc_loss", first_bad_step=5, sample=1))
