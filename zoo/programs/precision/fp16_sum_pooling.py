"""fp16 autocast and a crowd counter with global SUM pooling: 56x56 positions of about 25 add up to more than 65504 on a dense image.
True cause: an fp16 activation overflow in the pooling; the weights are normal and fp32 or bf16 train on."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class SumPool(nn.Module):
    def forward(s, x): return x.sum((2, 3))
class Counter(nn.Module):
    def __init__(s):
        super().__init__(); s.stem = nn.Conv2d(1, 6, 3, padding=1); s.pool = SumPool(); s.fc = nn.Linear(6, 1)
    def forward(s, x): return s.fc(s.pool(nn.functional.softplus(s.stem(x))) / 1000)

def build():
    torch.manual_seed(13); model = Counter(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(17); batches = []
    for i in range(6):
        x = torch.rand(2, 1, 56, 56, generator=g) * 4
        if i == 3: x[1] = x[1] * 2 + 24
        batches.append((x, x.mean((1, 2, 3))[:, None]))
    with torch.no_grad(): model.stem.weight.copy_(torch.rand(6, 1, 3, 3) / 6)
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="pool", phase="forward", op="aten.sum", first_bad_step=3))
