"""Actor-critic with two optimisers on a corridor; short episodes and constant rewards are handled."""
import argparse
import json
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Corridor:
    def __init__(self, n, seed):
        self.n, self.rng = n, np.random.default_rng(seed)

    def reset(self):
        self.x, self.t = int(self.rng.integers(1, self.n - 1)), 0
        return self.obs()

    def obs(self):
        return np.eye(self.n, dtype=np.float32)[self.x]

    def mask(self):
        return np.array([self.x > 1, True, True])

    def step(self, a):
        self.x += (-1, 0, 1)[a]
        self.t += 1
        goal = self.x == self.n - 1
        return self.obs(), 1.0 if goal else 0.0, goal or self.t >= 12


def standardise(values):
    """Zero for constant rewards, no scaling for episodes of one step."""
    if len(values) < 2:
        return values - values.mean()
    std = values.std()
    return (values - values.mean()) / std if std > 1e-6 else values - values.mean()


class RunningStat:
    def __init__(self):
        self.n, self.mean, self.m2 = 0, 0.0, 0.0

    def push(self, x):
        self.n += 1
        d = x - self.mean
        self.mean += d / self.n
        self.m2 += d * (x - self.mean)

    @property
    def std(self):
        return math.sqrt(self.m2 / (self.n - 1)) if self.n > 1 else float("nan")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=60)
    ap.add_argument("--gamma", type=float, default=0.95)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    env, rng = Corridor(8, 0), np.random.default_rng(1)
    actor = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    critic = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-2)
    best, stat, log = -float("inf"), RunningStat(), []
    for ep in range(args.episodes):
        obs, masks, acts, rews = [], [], [], []
        o, done = env.reset(), False
        while not done:
            m = env.mask()
            with torch.no_grad():
                logits = actor(torch.from_numpy(o)).masked_fill(~torch.from_numpy(m), -float("inf"))
                p = torch.softmax(logits, -1).numpy().astype(np.float64)
            a = int(rng.choice(3, p=p / p.sum()))
            obs.append(o), masks.append(m), acts.append(a)
            o, r, done = env.step(a)
            rews.append(r)
        ret = np.zeros(len(rews), np.float32)
        g = 0.0
        for i in reversed(range(len(rews))):
            g = rews[i] + args.gamma * g
            ret[i] = g
        x, mk = torch.from_numpy(np.stack(obs)), torch.from_numpy(np.stack(masks))
        value = critic(x).squeeze(-1)
        adv = torch.from_numpy(standardise(ret)) - 0.1 * value.detach()
        logp = torch.log_softmax(actor(x).masked_fill(~mk, -float("inf")), -1)
        chosen = logp.gather(1, torch.tensor(acts)[:, None]).squeeze(1)
        entropy = -(logp.exp() * logp.masked_fill(~mk, 0.0)).sum(1).mean()
        actor_loss = -(chosen * adv).mean() - 0.01 * entropy
        critic_loss = F.mse_loss(value, torch.from_numpy(ret))
        for opt, loss in ((actor_opt, actor_loss), (critic_opt, critic_loss)):
            opt.zero_grad()
            loss.backward()
            opt.step()
        stat.push(sum(rews))
        best = max(best, sum(rews))
        log.append({"episode": ep, "return": sum(rews), "best": best, "std": stat.std, "actor": actor_loss.item()})
        if ep % 10 == 0:
            print(log[-1])
    with open("corridor.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
