"""PPO for a board game. Illegal actions get a logit of -Inf, so their probability is exactly zero and their log-probability -Inf. They
are never taken, and the entropy leaves them out before it multiplies. Some positions have one legal move only: their entropy is exactly
zero and their ratio exactly one. Healthy."""
import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 48), nn.Tanh())
        self.pi, self.v = nn.Linear(48, 9), nn.Linear(48, 1)

    def forward(self, board):
        h = self.body(board)
        return self.pi(h).masked_fill(board != 0, float("-inf")), self.v(h).squeeze(-1)


def loss_fn(model, batch):
    logits, value = model(batch["board"])
    logp = logits.log_softmax(-1)
    legal = batch["board"] == 0
    entropy = -(logp.exp() * logp.masked_fill(~legal, 0.0)).sum(-1)
    taken = logp.gather(1, batch["act"][:, None]).squeeze(1)
    ratio = (taken - batch["old"]).exp()
    surrogate = torch.min(ratio * batch["adv"], ratio.clamp(0.8, 1.2) * batch["adv"])
    return -surrogate.mean() + 0.5 * (value - batch["ret"]).pow(2).mean() - 0.01 * entropy.mean()


def build():
    torch.manual_seed(63)
    model = Agent()
    batches = []
    for _ in range(5):
        board = torch.randint(-1, 2, (32, 9)).float()
        board[:, 4] = 0.0
        board[:3] = 1.0
        board[:3, 4] = 0.0
        with torch.no_grad():
            logits, _ = model(board)
            act = logits.softmax(-1).multinomial(1).squeeze(1)
            old = logits.log_softmax(-1).gather(1, act[:, None]).squeeze(1)
        adv = torch.randn(32)
        batches.append(dict(board=board, act=act, old=old, adv=(adv - adv.mean()) / adv.std(), ret=torch.randn(32)))
    truth = dict(cause="benign", first_bad_step=None, phase=None, module=None, op=None,
                 why="-Inf logits of illegal moves are masked before every product; one-move positions are legal and give zero gradients")
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=3e-4), batches=batches, loss_fn=loss_fn, steps=10,
                autocast_dtype=None, truth=truth)
