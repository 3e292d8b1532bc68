"""Text to speech. f0 is NaN on unvoiced frames by convention and is handled (nan_to_num and a voiced mask) in every batch. The log-mel
of one clip in batch 3 was computed from digital silence without a floor: log10(0) = -inf is stored in the data set.
True cause: -inf in the target mel of that clip. TRAP: the NaN in f0 is older, louder and innocent."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Acoustic(nn.Module):
    def __init__(self, mels=8):
        super().__init__()
        self.text = nn.Embedding(30, 16)
        self.pitch = nn.Linear(2, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.mel = nn.Linear(24, mels)

    def forward(self, phones, f0):
        voiced = ~torch.isnan(f0)
        p = torch.stack([torch.nan_to_num(f0, nan=0.0) / 200.0, voiced.float()], -1)
        return self.mel(self.rnn(self.text(phones) + self.pitch(p))[0])


def build():
    torch.manual_seed(0)
    model = Acoustic()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(6):
        f0 = 120 + 60 * torch.rand(4, 10, generator=g)
        f0[:, ::3] = float("nan")
        mel = torch.randn(4, 10, 8, generator=g) - 2
        if i == 3:
            mel[2, 8:] = float("-inf")
        batches.append({"phones": torch.randint(0, 30, (4, 10), generator=g), "audio": {"f0": f0, "mel": mel}})

    def loss_fn(m, b):
        return F.l1_loss(m(b["phones"], b["audio"]["f0"]), b["audio"]["mel"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=3, bad_path="audio.mel[2]", grads_finite=True,
                           trap=True))
