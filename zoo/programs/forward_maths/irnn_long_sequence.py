"""An IRNN (ReLU, recurrent weight 1.6 times the identity) trained on short sequences; the curriculum jumps to 200 steps: 1.6^200 overflows within one forward.
True cause: one cell multiplies again and again."""
import torch, torch.nn as nn

class Irnn(nn.Module):
    def __init__(s, d=6):
        super().__init__(); s.cell = nn.RNNCell(3, d, nonlinearity="relu"); s.out = nn.Linear(d, 1)
        with torch.no_grad(): s.cell.weight_hh.copy_(1.6 * torch.eye(d)); s.cell.weight_ih.abs_()
    def forward(s, x):
        h = x.new_zeros(x.shape[1], 6)
        for t in range(x.shape[0]): h = s.cell(x[t], h)
        return s.out(h).squeeze(-1)

def build():
    torch.manual_seed(0); model = Irnn(); opt = torch.optim.SGD(model.parameters(), lr=1e-9)
    g = torch.Generator().manual_seed(1); batches = [(torch.rand(200 if i == 3 else 8, 4, 3, generator=g), torch.rand(4, generator=g)) for i in range(5)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="cell", phase="forward", op="aten.addmm", also_op=["aten.add"], first_bad_step=3))
