"""The output projection of a T5-like feed-forward block reaches 66,000 for one input under float16 autocast; in float32 it is an ordinary number.
After https://github.com/huggingface/transformers/issues/5651 (h = self.wo(h): inf, in fp32 a value of 66246).
True cause: an activation leaves the range of float16."""
import torch
import torch.nn as nn


class DenseReluDense(nn.Module):
    def __init__(self, d=16, ff=64):
        super().__init__()
        self.wi, self.wo = nn.Linear(d, ff, bias=False), nn.Linear(ff, d, bias=False)

    def forward(self, x):
        return self.wo(torch.relu(self.wi(x)))


class T5Block(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.ff, self.norm, self.head = DenseReluDense(d), nn.LayerNorm(d), nn.Linear(d, 3)

    def forward(self, x):
        return self.head(self.norm(x.float() + self.ff(x)))


def build():
    torch.manual_seed(3)
    model = T5Block()
    with torch.no_grad():
        model.ff.wi.weight.mul_(0.02).add_(1.0)
        model.ff.wo.weight.add_(78.0)
    opt = torch.optim.SGD(model.parameters(), lr=1e-5)
    g = torch.Generator().manual_seed(4)
    batches = [(torch.rand(4, 16, generator=g) * 0.9, torch.randint(0, 3, (4,), generator=g)) for _ in range(4)]      # features in [0, 1)
    batches[2][0][3] = 0.95                                # all of them are high at once

    def loss_fn(m, b):
        return nn.functional.cross_entropy(m(b[0]).float(), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="ff.wo", phase="forward", op="aten.mm", first_bad_step=2, line="return self.wo(torch.relu(self.wi(x)))", sample=3))
