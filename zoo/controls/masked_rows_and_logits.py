"""CONTROL: attention with padded QUERY rows fully masked (NaN under no_grad in a frozen tower, dropped by index), logits with -inf for illegal actions and a Categorical over them,
and a max-pool over -inf padding: every -inf is deliberate and none meets a 0 or an empty row that is used."""
import torch, torch.nn as nn

class Tower(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(5, 5)
    @torch.no_grad()
    def forward(s, x, pad):
        w = s.lin(x) @ x.transpose(1, 2); w = w.masked_fill(pad[:, None], float("-inf")).masked_fill(pad[:, :, None], float("-inf"))
        return (torch.softmax(w, -1) @ x)[~pad]
class Net(nn.Module):
    def __init__(s): super().__init__(); s.tower = Tower(); s.pi = nn.Linear(5, 4); s.val = nn.Linear(5, 1)
    def forward(s, x, pad, legal):
        h = s.tower(x, pad); return s.pi(h).masked_fill(~legal, float("-inf")), s.val(x).masked_fill(pad[..., None], float("-inf")).amax(1)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam([p for n, p in model.named_parameters() if "tower" not in n], lr=1e-3); g = torch.Generator().manual_seed(1)
    pad = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]]).bool(); legal = torch.tensor([1, 1, 0, 1]).bool()
    batches = [(torch.randn(2, 4, 5, generator=g), pad, legal, torch.tensor([0, 1, 3, 3, 0])) for _ in range(8)]
    def loss_fn(m, b):
        l, v = m(*b[:3]); return {"pi": nn.functional.cross_entropy(l, b[3]), "v": (v ** 2).mean()}
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
