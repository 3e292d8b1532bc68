"""Text to speech with a learned aligner: the alignment of phonemes and frames is trained with a CTC loss over the attention. One clip was trimmed to fewer
frames than its text has phonemes.
After https://github.com/axelspringer/ForwardTacotron/pull/105 (the forward-sum loss of the aligner is a CTC loss over attention; there with zero_infinity).
True cause: an alignment that does not exist."""
import torch
import torch.nn.functional as F
from torch import nn


class Aligner(nn.Module):
    def __init__(self, phonemes=20, mels=8, d=12):
        super().__init__()
        self.key = nn.Embedding(phonemes, d)
        self.query = nn.Conv1d(mels, d, 3, padding=1)

    def forward(self, text, mel):
        k, q = self.key(text), self.query(mel.transpose(1, 2)).transpose(1, 2)
        return -0.05 * torch.cdist(q, k).square()


class ForwardSumLoss(nn.Module):
    def __init__(self, blank=-1.0):
        super().__init__()
        self.blank = blank

    def forward(self, scores, text_lengths, mel_lengths):
        padded = F.pad(scores, (1, 0), value=self.blank)
        losses = []
        for b in range(len(scores)):
            n, t = int(text_lengths[b]), int(mel_lengths[b])
            logp = padded[b, :t, :n + 1].log_softmax(-1)
            losses.append(F.ctc_loss(logp[:, None], torch.arange(1, n + 1)[None], torch.tensor([t]), torch.tensor([n])))
        return torch.stack(losses).mean()


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"aligner": Aligner(), "forward_sum": ForwardSumLoss()})
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(3)
    plan = [([6, 8], [20, 26]), ([5, 9], [18, 30]), ([7, 10], [22, 8]), ([4, 6], [15, 16])]
    batches = []
    for texts, mels in plan:
        batches.append(dict(text=torch.randint(0, 20, (2, max(texts)), generator=g), mel=torch.randn(2, max(mels), 8, generator=g), text_lengths=texts, mel_lengths=mels))

    def loss_fn(m, b):
        return m["forward_sum"](m["aligner"](b["text"], b["mel"]), b["text_lengths"], b["mel_lengths"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="forward_sum", phase="forward", op="aten._ctc_loss", first_bad_step=2, sample=1,
                           line="losses.append(F.ctc_loss(", why="clip 1 has 8 frames and 10 phonemes"))
