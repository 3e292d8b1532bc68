"""An LSTM recogniser with CTC, targets concatenated in one vector: one clip is shorter than the window, so its output length is 0, yet it has a transcript.
True cause: an infeasible alignment (0 frames, 2 letters)."""
import torch, torch.nn as nn

class Recogniser(nn.Module):
    def __init__(s): super().__init__(); s.rnn = nn.LSTM(6, 12); s.head = nn.Linear(12, 7)
    def forward(s, x): return s.head(s.rnn(x)[0]).log_softmax(-1)

def build():
    torch.manual_seed(0); model = Recogniser(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        n = torch.tensor([2, 3, 2]); frames = torch.tensor([10, 8, 0 if i == 3 else 9])
        batches.append(dict(x=torch.randn(10, 3, 6, generator=g), letters=torch.randint(1, 7, (int(n.sum()),), generator=g), frames=frames, n=n))
    def loss_fn(m, b): return nn.functional.ctc_loss(m(b["x"]), b["letters"], b["frames"], b["n"], reduction="sum")
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=3, grads_finite=True))
