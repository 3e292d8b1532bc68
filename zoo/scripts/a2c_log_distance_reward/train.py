"""Advantage actor-critic for a reaching task on a grid; reward is minus the log of the distance to the goal."""
import argparse
import json

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Reach:
    def __init__(self, size, seed):
        self.size, self.rng = size, np.random.default_rng(seed)
        self.count = 0

    def reset(self):
        self.pos = self.rng.integers(0, self.size, 2)
        self.goal = self.rng.integers(0, self.size, 2)
        while np.abs(self.pos - self.goal).sum() < 9:
            self.pos = self.rng.integers(0, self.size, 2)
            self.goal = self.rng.integers(0, self.size, 2)
        if self.count == 12:  # a start in the corner, goal next to it
            self.pos, self.goal = np.array([0, 0]), np.array([0, 0])
        self.count += 1
        self.t = 0
        return self.obs()

    def obs(self):
        return np.concatenate([self.pos, self.goal, self.goal - self.pos]).astype(np.float32) / self.size

    def step(self, a):
        if self.t > 0 or not np.array_equal(self.pos, self.goal):
            self.pos = np.clip(self.pos + MOVES[a], 0, self.size - 1)
        self.t += 1
        with np.errstate(divide="ignore"):
            reward = -np.log(np.linalg.norm(self.pos - self.goal))
        return self.obs(), reward, self.t >= 8


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


def collect(env, net, episodes, gamma):
    obs, acts, rets, mean_r = [], [], [], []
    for _ in range(episodes):
        o, done, rews = env.reset(), False, []
        while not done:
            with torch.no_grad():
                logits, _ = net(torch.from_numpy(o))
            a = torch.multinomial(F.softmax(logits.nan_to_num(), -1), 1).item()
            obs.append(o)
            acts.append(a)
            o, r, done = env.step(a)
            rews.append(r)
        g, out = 0.0, []
        for r in reversed(rews):
            g = r + gamma * g
            out.append(g)
        rets += out[::-1]
        mean_r.append(np.mean(rews))
    return (torch.from_numpy(np.stack(obs)), torch.tensor(acts),
            torch.tensor(np.array(rets), dtype=torch.float32), float(np.mean(mean_r)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=15)
    ap.add_argument("--episodes", type=int, default=2)
    ap.add_argument("--gamma", type=float, default=0.9)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    env, net = Reach(12, 0), ActorCritic()
    opt = torch.optim.RMSprop(net.parameters(), lr=args.lr, alpha=0.99, eps=1e-5)
    log = []
    for u in range(args.updates):
        obs, acts, rets, mean_r = collect(env, net, args.episodes, args.gamma)
        logits, values = net(obs)
        adv = rets - values
        dist = torch.distributions.Categorical(logits=logits, validate_args=False)
        policy_loss = -(dist.log_prob(acts) * adv.detach()).mean()
        loss = policy_loss + 0.5 * F.smooth_l1_loss(values, rets) - 0.01 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        log.append({"update": u, "reward": mean_r, "loss": loss.item()})
        print(log[-1])
    with open("a2c.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
