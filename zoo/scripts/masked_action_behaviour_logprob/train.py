"""Off-policy policy gradient with action masks: epsilon-greedy behaviour, importance weights, replayed minibatches."""
import argparse
import json

import numpy as np
import torch
import torch.nn as nn

N_ACT = 5


class Scheduler:
    """Assign jobs to machines; a machine that is full is masked."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.load = self.rng.uniform(0.0, 0.4, N_ACT)
        self.job = self.rng.uniform(0.05, 0.2)
        self.t = 0
        return self.obs()

    def obs(self):
        return np.append(self.load, self.job).astype(np.float32)

    def mask(self):
        m = self.load < 6.0
        return m if m.any() else np.ones(N_ACT, dtype=bool)

    def step(self, a):
        reward = -float(self.load[a])
        self.load[a] += self.job
        self.load *= 0.97
        self.job = self.rng.uniform(0.05, 0.2)
        self.t += 1
        return self.obs(), reward, self.t >= 40


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(N_ACT + 1, 48), nn.Tanh(), nn.Linear(48, N_ACT))

    def forward(self, obs, mask):
        logits = self.net(obs).masked_fill(~mask, float("-inf"))
        return torch.softmax(logits, -1)


def behave(policy, obs, mask, eps, rng):
    with torch.no_grad():
        probs = policy(torch.from_numpy(obs), torch.from_numpy(mask)).nan_to_num(1.0 / N_ACT).numpy()
    if rng.random() < eps:
        action = int(rng.integers(N_ACT))
        return action, 1.0 / N_ACT
    action = int(probs.argmax())
    return action, float(1 - eps + eps / N_ACT)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=12)
    ap.add_argument("--eps", type=float, default=0.3)
    ap.add_argument("--full-at", type=int, default=7, help="iteration from which one machine is in maintenance")
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng, env, policy = np.random.default_rng(5), Scheduler(5), Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=args.lr)
    log = []
    for it in range(args.iterations):
        rows, obs, done = [], env.reset(), False
        while not done:
            mask = env.mask() if it < args.full_at else env.mask() & (np.arange(N_ACT) != 2)
            a, mu = behave(policy, obs, mask, args.eps, rng)
            nxt, r, done = env.step(a)
            rows.append((obs, mask, a, mu, r))
            obs = nxt
        ret, g = [], 0.0
        for row in reversed(rows):
            g = row[4] + 0.9 * g
            ret.append(g)
        ret = torch.tensor(ret[::-1])
        adv = (ret - ret.mean()) / (ret.std() + 1e-6)
        o, m = torch.tensor(np.stack([r[0] for r in rows])), torch.tensor(np.stack([r[1] for r in rows]))
        a, mu = torch.tensor([r[2] for r in rows]), torch.tensor([r[3] for r in rows])
        logp = torch.log(policy(o, m).gather(1, a[:, None]).squeeze(1))
        weight = (logp.detach().exp() / mu).clamp(0.1, 5.0)
        loss = -(weight * adv * logp).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        log.append({"it": it, "loss": loss.item(), "return": ret[0].item()})
        print(log[-1])
    with open("offpolicy.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
