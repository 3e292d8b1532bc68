"""CONTROL: CTC with feasible targets, one of them exactly as long as the input allows. log_alpha holds -inf as always."""
import torch, torch.nn as nn

class ASR(nn.Module):
    def __init__(s): super().__init__(); s.rnn = nn.GRU(5, 12, batch_first=True); s.head = nn.Linear(12, 6)
    def forward(s, x): return s.head(s.rnn(x)[0]).log_softmax(-1)

def build():
    torch.manual_seed(0); model = ASR(); opt = torch.optim.AdamW(model.parameters(), lr=5e-3); g = torch.Generator().manual_seed(1)
    y = torch.tensor([[1, 2, 3, 4, 5, 1, 2], [2, 2, 3, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0, 0]]); n = torch.tensor([7, 3, 1])
    batches = [(torch.randn(3, 7, 5, generator=g), y, n) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.ctc_loss(m(b[0]).transpose(0, 1), b[1], torch.tensor([7, 7, 7]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
