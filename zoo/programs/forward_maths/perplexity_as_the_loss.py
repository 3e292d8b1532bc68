"""Someone trains on the perplexity, exp of the summed token loss: a line of 10 tokens gives about 30, a line of 60 gives 160, and exp(160) is Inf.
True cause: exp overflow in the loss; the mean, or the token loss itself, is finite."""
import torch, torch.nn as nn

class CharLM(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(16, 8); s.rnn = nn.LSTM(8, 16, num_layers=2, batch_first=True); s.head = nn.Linear(16, 16)
    def forward(s, ids): return s.head(s.rnn(s.emb(ids))[0])

def build():
    torch.manual_seed(0); model = CharLM(); opt = torch.optim.Adamax(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 16, (1, n), generator=g) for n in (8, 10, 9, 60, 8)]
    def loss_fn(m, ids):
        nll = nn.functional.cross_entropy(m(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="sum")
        return torch.exp(nll) * 1e-3
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=3))
