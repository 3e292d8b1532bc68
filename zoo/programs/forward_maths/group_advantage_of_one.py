"""Group-relative advantages, (r - mean) / sqrt(var + eps) over the answers to one prompt: of one group only a single answer survived
the length filter. The eps does not help, the variance itself is NaN.
True cause: unbiased variance of one element, in the loss function."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Embedding(15, 8), nn.Linear(8, 15)); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        sizes = [4, 1, 3] if i == 2 else [4, 2, 2]
        n = sum(sizes); batches.append((torch.randint(0, 15, (n, 5), generator=g), torch.rand(n, generator=g), sizes))
    def loss_fn(m, b):
        ids, reward, sizes = b
        adv = torch.cat([(r - r.mean()) / torch.sqrt(r.var() + 1e-4) for r in reward.split(sizes)])
        logp = m(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1).mean(1)
        return -(adv * logp).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="loss", phase="forward", op="aten.var", first_bad_step=2))
