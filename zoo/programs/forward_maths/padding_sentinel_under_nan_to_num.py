"""Distillation from a server: answers of different length are padded with log-probabilities of -inf. The divergence is cleaned with nan_to_num, so the loss is finite;
in backward the cleaned entries send 0 into a product with inf.
After https://github.com/huggingface/trl/pull/5594 (the -inf sentinel at padding gives NaN in backward, since the chain rule does not respect nan_to_num).
True cause: zero times infinity in backward."""
import torch
from torch import nn

PAD = float("-inf")


class StudentHead(nn.Module):
    def __init__(self, d, vocab):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, h):
        return self.out(self.norm(h)).log_softmax(-1)


class Student(nn.Module):
    def __init__(self, vocab=9, d=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.mix = nn.Conv1d(d, d, 3, padding=1)
        self.head = StudentHead(d, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        return self.head(h + self.mix(h.transpose(1, 2)).transpose(1, 2))


def server_logprobs(lengths, width, vocab, g):
    out = torch.full((len(lengths), width, vocab), PAD)
    for i, n in enumerate(lengths):
        out[i, :n] = torch.randn(n, vocab, generator=g).log_softmax(-1)
    return out


def reverse_divergence(student, teacher, mask):
    gap = student - teacher
    per_token = torch.nan_to_num(student.exp() * gap, posinf=0.0).sum(-1)
    return (per_token * mask).sum() / mask.sum()


def build():
    torch.manual_seed(2)
    model = Student()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(17)
    batches = []
    for lengths in ([6, 6, 6], [5, 5, 5], [6, 6, 6], [6, 4, 6], [3, 3, 3]):
        width = max(lengths)
        batches.append(dict(ids=torch.randint(0, 9, (3, width), generator=g), teacher=server_logprobs(lengths, width, 9, g),
                            mask=(torch.arange(width) < torch.tensor(lengths)[:, None]).float()))

    def loss_fn(m, b):
        return reverse_divergence(m(b["ids"]), b["teacher"], b["mask"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", also=("where_unselected_branch",), module="loss", phase="backward", op="aten.mul", first_bad_step=3, sample=1,
                           loss_finite_at_first_bad_step=True, line="torch.nan_to_num(student.exp() * gap",
                           why="the gradient of a cleaned entry is 0, and the gap it is multiplied with is inf"))
