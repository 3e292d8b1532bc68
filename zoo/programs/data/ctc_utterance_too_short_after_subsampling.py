"""Speech recognition with CTC and a front end that keeps every fourth frame. The collate function pads features with NaN so that nobody
uses padding by accident, and the model replaces it with zero before the first layer: legal, and in every batch. Batch 2 has an
utterance of 24 frames, 6 after subsampling, with a transcript of 5 letters of which two neighbours repeat twice: 7 are needed. The loss
is Inf. The true cause is the alignment that cannot exist."""
import torch
from torch import nn
import torch.nn.functional as F


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = nn.Conv1d(8, 24, kernel_size=4, stride=4)
        self.enc = nn.GRU(24, 32, batch_first=True)
        self.out = nn.Linear(32, 9)

    def forward(self, feats):
        feats = torch.where(torch.isnan(feats), 0.0, feats)
        h = torch.relu(self.sub(feats.transpose(1, 2))).transpose(1, 2)
        return self.out(self.enc(h)[0]).log_softmax(-1)


def loss_fn(model, batch):
    logp = model(batch["feats"]).transpose(0, 1)
    return F.ctc_loss(logp, batch["text"], batch["frames"] // 4, batch["letters"], blank=0)


def make(frames, texts):
    feats = torch.full((len(frames), max(frames), 8), float("nan"))
    for i, n in enumerate(frames):
        feats[i, :n] = torch.randn(n, 8)
    text = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
    for i, t in enumerate(texts):
        text[i, :len(t)] = torch.tensor(t)
    return dict(feats=feats, frames=torch.tensor(frames), text=text, letters=torch.tensor([len(t) for t in texts]))


def build():
    torch.manual_seed(6)
    model = Recogniser()
    batches = [make([48, 40, 56], [[1, 2, 3], [4, 4, 5], [6, 7, 8, 1]]), make([52, 44, 60], [[2, 1], [3, 5, 5], [8, 8, 1]]),
               make([48, 24, 56], [[1, 3, 2], [4, 4, 6, 6, 2], [7, 7, 1]]), make([44, 48, 40], [[5, 1], [2, 6, 2], [1, 4]])]
    truth = dict(
        cause="ctc_infeasible_alignment", first_bad_step=2, phase="forward", module="loss", op="aten._ctc_loss", also_op=["aten.ctc_loss"],
        line="return F.ctc_loss(logp,", sample=1,
        why="utterance 1 has 6 frames after subsampling and needs 5 letters and 2 blanks; the NaN padding never reaches a layer",
        repair=("blank=0)", "blank=0, zero_infinity=True)"), **{"not": ["bad_input_data"]},
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=4,
                autocast_dtype=None, truth=truth)
