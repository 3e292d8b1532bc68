"""Feature distillation under fp16 autocast: student and teacher features are both half, and the sum of squared differences over
batch, tokens and channels is taken in half: every term is below 900, the sum is above 65504.
True cause: the loss is reduced in half precision; logits and features are finite, the same sum in fp32 is finite."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.emb = nn.Embedding(40, 16)
        self.up, self.feat = nn.Linear(16, width), nn.Linear(width, 32)
        self.cls = nn.Linear(32, 4)

    def forward(self, ids):
        f = self.feat(F.gelu(self.up(self.emb(ids))))
        return f, self.cls(f.mean(1))


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = Tower(24), Tower(48)
        self.teacher.requires_grad_(False)


def build():
    torch.manual_seed(0)
    model = Distiller()
    with torch.no_grad():
        model.teacher.feat.weight.mul_(30)
    opt = torch.optim.AdamW(model.student.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    # the loader grows the sequence length: the longer the sequence, the more terms in the sum
    batches = [(torch.randint(0, 40, (8, n), generator=g), torch.randint(0, 4, (8,), generator=g)) for n in (2, 2, 4, 48, 48)]

    def loss_fn(m, b):
        fs, logits = m.student(b[0])
        with torch.no_grad():
            ft, _ = m.teacher(b[0])
        hint = ((fs - ft) ** 2).sum()
        return F.cross_entropy(logits.float(), b[1]) + 1e-3 * hint

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_loss_overflow", module="loss", phase="forward", op="aten.sum", first_bad_step=3,
                           grads_finite=True, also=dict(cause=["fp16_forward_overflow"])))
