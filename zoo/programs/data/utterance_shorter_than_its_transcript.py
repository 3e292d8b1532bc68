"""The acoustic model subsamples by 4; an utterance of 11 frames has 2 frames left for a transcript of 4 letters.
After https://github.com/k2-fsa/icefall/issues/135 (inf ctc loss: 11 frames before subsampling).
True cause: the alignment is impossible."""
import torch
from torch import nn


class Subsample(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(8, d, 3, stride=2), nn.Conv1d(d, d, 3, stride=2)

    def forward(self, x, n):
        x = torch.relu(self.c2(torch.relu(self.c1(x.transpose(1, 2)))))
        return x.transpose(1, 2), ((n - 1) // 2 - 1) // 2


class AM(nn.Module):
    def __init__(self, vocab=7):
        super().__init__()
        self.sub, self.out = Subsample(), nn.Linear(12, vocab)

    def forward(self, feats, n):
        h, n = self.sub(feats, n)
        return self.out(h).log_softmax(-1).transpose(0, 1), n


def build():
    torch.manual_seed(0)
    am = AM()
    opt = torch.optim.Adam(am.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for frames in ([60, 48, 40], [52, 60, 44], [60, 11, 50], [48, 60, 60]):
        text = torch.stack([torch.randperm(6, generator=g)[:4] + 1 for _ in frames])
        batches.append(dict(feats=torch.randn(3, 60, 8, generator=g), n=torch.tensor(frames), text=text))
    ctc = nn.CTCLoss(blank=0, reduction="mean")

    def loss_fn(m, b):
        logp, n = m(b["feats"], b["n"])
        return ctc(logp, b["text"], n, torch.full((3,), 4))

    return dict(model=am, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=2, line="return ctc(logp", sample=1))
