"""nn.RNN with ReLU whose recurrent matrix is 1.5 times the identity (it was meant to be 1.0): harmless for 10 steps, a factor of 1e40 for 240.
True cause: an exploding recurrence inside one forward of the layer, once a long sequence comes (batch 3)."""
import torch, torch.nn as nn

class Adding(nn.Module):
    def __init__(s):
        super().__init__(); s.rnn = nn.RNN(2, 8, nonlinearity="relu", batch_first=True); s.head = nn.Linear(8, 1)
        with torch.no_grad(): s.rnn.weight_hh_l0.copy_(1.5 * torch.eye(8))
    def forward(s, x): return s.head(s.rnn(x)[0][:, -1])

def build():
    torch.manual_seed(0); model = Adding(); opt = torch.optim.Adamax(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(3, n, 2, generator=g), torch.rand(3, 1, generator=g)) for n in (6, 10, 8, 240, 7)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="rnn", phase="forward", op="aten.addmm", first_bad_step=3))
