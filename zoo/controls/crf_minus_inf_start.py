"""CONTROL: linear-chain CRF in log space. The start vector is -inf except for one state; logsumexp never sees a row of only -inf. Gradients are finite."""
import torch, torch.nn as nn

class CRF(nn.Module):
    def __init__(s, k): super().__init__(); s.trans = nn.Parameter(0.1 * torch.randn(k, k)); s.register_buffer("start", torch.full((k,), float("-inf"))); s.start[0] = 0.0
    def forward(s, em, tags):
        a = s.start.expand(len(em), -1); gold = torch.zeros(len(em)); prev = torch.zeros(len(em), dtype=torch.long)
        for t in range(em.shape[1]):
            a = torch.logsumexp(a[:, :, None] + s.trans, 1) + em[:, t]
            gold = gold + s.trans[prev, tags[:, t]] + em[:, t].gather(1, tags[:, t:t + 1]).squeeze(1); prev = tags[:, t]
        return (torch.logsumexp(a, 1) - gold).mean()
class Tagger(nn.Module):
    def __init__(s): super().__init__(); s.rnn = nn.GRU(4, 8, batch_first=True, bidirectional=True); s.em = nn.Linear(16, 5); s.crf = CRF(5)
    def forward(s, x, y): return s.crf(s.em(s.rnn(x)[0]), y)
def build():
    torch.manual_seed(0); model = Tagger(); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 7, 4, generator=g), torch.randint(0, 5, (4, 7), generator=g)) for _ in range(8)]
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
