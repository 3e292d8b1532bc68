"""CONTROL: a teacher on a server pads short answers with log-probabilities of -inf. The padded places are filled before the divergence is computed, so neither the loss
nor its gradient ever meets them.
After https://github.com/huggingface/trl/pull/5594 (neutralise the sentinel at known padding positions before the shared divergence helper runs)."""
import torch
from torch import nn


class Student(nn.Module):
    def __init__(self, vocab=9, d=14):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(vocab, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0]).log_softmax(-1)


def reverse_divergence(student, teacher, mask):
    teacher = teacher.masked_fill(~mask[..., None], 0.0)
    student = student.masked_fill(~mask[..., None], 0.0)
    return (student.exp() * (student - teacher)).sum(-1).sum() / mask.sum()


def build():
    torch.manual_seed(0)
    model = Student()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(4)
    batches = []
    for lengths in ([6, 6, 6], [6, 2, 5], [1, 4, 6], [5, 5, 3]):
        mask = torch.arange(6) < torch.tensor(lengths)[:, None]
        teacher = torch.randn(3, 6, 9, generator=g).log_softmax(-1)
        teacher[~mask] = float("-inf")
        batches.append({"ids": torch.randint(0, 9, (3, 6), generator=g), "teacher": teacher, "mask": mask})

    def loss_fn(m, b):
        return reverse_divergence(m(b["ids"]), b["teacher"], b["mask"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
