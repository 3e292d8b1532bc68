"""A language model on a stream: the LSTM's state is carried from batch to batch in an attribute. One chunk of the stream holds NaN; without care the state stays NaN ever after.
True cause: NaN in the batch of step 3."""
import torch, torch.nn as nn

class Stream(nn.Module):
    def __init__(s): super().__init__(); s.rnn = nn.LSTM(4, 8, batch_first=True); s.out = nn.Linear(8, 4); s.state = None
    def forward(s, x):
        y, state = s.rnn(x, s.state); s.state = tuple(t.detach() for t in state); return s.out(y)

def build():
    torch.manual_seed(0); model = Stream(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(2, 6, 4, generator=g) for _ in range(7)]; batches[3][1, 4, 2] = float("nan")
    def loss_fn(m, x): return nn.functional.mse_loss(m(x[:, :-1]), x[:, 1:].nan_to_num())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=3))
