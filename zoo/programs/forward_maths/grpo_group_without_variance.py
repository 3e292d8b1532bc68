"""GRPO without an epsilon: all completions of one prompt get the reward 1, the group has no variance, and 0 is divided by 0.
After https://github.com/bojieli/ai-agent-book/pull/498 (the formula divides by std: undefined if all rollouts have the same reward).
True cause: division by a standard deviation of exactly zero."""
import torch
from torch import nn

G = 4


def rewards_of(answers, gold):
    return torch.tensor([[1.0 if a == g else 0.0 for a in row] for row, g in zip(answers, gold)])


def build():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(6)
    batches = [dict(state=torch.randn(3, 6, generator=g), answers=a, gold=[2, 0, 1])
               for a in ([[2, 1, 2, 3], [0, 0, 1, 3], [1, 3, 3, 0]], [[2, 2, 2, 3], [1, 0, 1, 3], [1, 1, 3, 0]],
                         [[0, 1, 2, 3], [0, 0, 0, 0], [1, 3, 3, 0]], [[2, 1, 0, 3], [0, 0, 1, 3], [1, 3, 2, 0]])]

    def loss_fn(m, b):
        r = rewards_of(b["answers"], b["gold"])
        centred = r - r.mean(1, keepdim=True)
        adv = centred / r.std(1, keepdim=True)
        logp = torch.log_softmax(m(b["state"]), -1)
        chosen = logp.gather(1, torch.tensor(b["answers"]))
        return -(adv * chosen).sum(1).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=2, line="adv = centred /", sample=1))
