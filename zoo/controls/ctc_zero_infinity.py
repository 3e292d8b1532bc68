"""Small speech recogniser with CTC; zero_infinity=True drops the utterance whose transcript does not fit.

The inf of that one utterance exists only inside the loss.

Healthy twin of ctc_transcript_longer_than_audio_frames.py."""

import torch
from torch import nn

ALPHABET = " abcdefghij"


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = nn.Conv1d(8, 24, 3, stride=2, padding=1)
        self.gru = nn.GRU(24, 24, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(48, len(ALPHABET))

    def forward(self, feats):
        h = torch.relu(self.sub(feats.transpose(1, 2))).transpose(1, 2)
        return self.fc(self.gru(h)[0]).log_softmax(-1)


def utterances():
    g = torch.Generator().manual_seed(77)
    for i in range(9):
        feats = torch.randn(4, 40, 8, generator=g)
        frames = torch.tensor([40, 36, 30, 24])
        words = ["abcd", "hij ab", "cafe", "bed"]
        if i == 3:
            words[3] = "ffffaaaabb"  # ten letters in 12 frames, but seven repeats
        yield feats, frames, words


def build():
    torch.manual_seed(0)
    model = Recogniser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)

    def loss_fn(model, batch):
        feats, frames, words = batch
        log_probs = model(feats).transpose(0, 1)
        target = torch.tensor([ALPHABET.index(c) for w in words for c in w.replace(" ", "j")])
        lengths = torch.tensor([len(w) for w in words])
        return ctc(log_probs, target, frames // 2, lengths)

    return dict(model=model, optimizer=optimizer, batches=list(utterances()), loss_fn=loss_fn, steps=9,
                autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
