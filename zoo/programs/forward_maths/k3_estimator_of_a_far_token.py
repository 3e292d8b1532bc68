"""The low-variance KL estimator exp(ref - logp) - (ref - logp) - 1: one token that the policy has unlearned is at -130 while the reference has -2.
After https://github.com/verl-project/verl/pull/1779 (clamping before exponentiation in low_var_kl).
True cause: overflow of exp."""
import torch
from torch import nn


def low_var_kl(logp, ref):
    delta = ref - logp
    return delta.exp() - delta - 1


class Policy(nn.Module):
    def __init__(self, v=8):
        super().__init__()
        self.logits = nn.Embedding(v, v)
        with torch.no_grad():
            self.logits.weight.normal_(std=0.5)
            self.logits.weight[3, 6] = -130.0           # never seen after token 3 in months of training


def build():
    torch.manual_seed(0)
    policy = nn.ModuleDict({"policy": Policy()})
    opt = torch.optim.SGD(policy.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1)
    batches = []
    for k in range(4):
        ids = torch.randint(0, 6, (5, 7), generator=g)
        if k == 2:
            ids[4, 2], ids[4, 3] = 3, 6
        batches.append({"ids": ids, "ref": torch.full((5, 6), -2.0), "adv": torch.randn(5, 1, generator=g)})

    def loss_fn(m, b):
        lp = m["policy"].logits(b["ids"][:, :-1]).log_softmax(-1).gather(2, b["ids"][:, 1:, None]).squeeze(2)
        pg = -(b["adv"] * (lp - lp.detach()).exp())
        return (pg + 0.01 * low_var_kl(lp, b["ref"])).mean()

    return dict(model=policy, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=2, line="return delta.exp() - delta - 1", sample=4))
