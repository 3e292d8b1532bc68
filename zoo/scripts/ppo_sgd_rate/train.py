"""PPO for a pendulum-like NumPy environment, one shared trunk, clipped surrogate, SGD with momentum."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Normal


class Pendulum:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.th, self.thdot, self.t = self.rng.uniform(-np.pi, np.pi), self.rng.uniform(-1, 1), 0
        return self.obs()

    def obs(self):
        return np.array([np.cos(self.th), np.sin(self.th), self.thdot / 8.0], dtype=np.float32)

    def step(self, u):
        u = float(np.clip(u, -2, 2))
        norm = ((self.th + np.pi) % (2 * np.pi)) - np.pi
        reward = -(norm ** 2 + 0.1 * self.thdot ** 2 + 0.001 * u ** 2)
        self.thdot = float(np.clip(self.thdot + (15 * np.sin(self.th) + 3 * u) * 0.05, -8, 8))
        self.th += self.thdot * 0.05
        self.t += 1
        return self.obs(), reward, self.t >= 64


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mu, self.v = nn.Linear(hidden, 1), nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        h = self.trunk(x)
        return Normal(self.mu(h), self.log_std.clamp(-3, 1).exp(), validate_args=False), self.v(h).squeeze(-1)


def rollout(env, net, horizon, gamma):
    obs, acts, logps, rews, dones = [], [], [], [], []
    o = env.reset()
    for _ in range(horizon):
        with torch.no_grad():
            dist, _ = net(torch.from_numpy(o)[None])
            a = dist.sample()
        obs.append(o)
        acts.append(a.item())
        logps.append(dist.log_prob(a).item())
        o, r, done = env.step(a.item())
        rews.append(r)
        dones.append(done)
        if done:
            o = env.reset()
    ret, out = 0.0, []
    for r, d in zip(reversed(rews), reversed(dones)):
        ret = r + gamma * ret * (1.0 - d)
        out.append(ret)
    return [torch.as_tensor(np.array(v), dtype=torch.float32) for v in (obs, acts, logps, out[::-1])]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=2.0)
    ap.add_argument("--iterations", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--vf-coef", type=float, default=0.5)
    ap.add_argument("--clip", type=float, default=0.2)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    env, net = Pendulum(3), ActorCritic()
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    for it in range(args.iterations):
        obs, acts, logps, rets = rollout(env, net, 256, 0.97)
        with torch.no_grad():
            adv = rets - net(obs)[1]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        for _ in range(args.epochs):
            for idx in torch.randperm(256).split(64):
                dist, value = net(obs[idx])
                logp = dist.log_prob(acts[idx, None]).sum(-1)
                ratio = (logp - logps[idx]).clamp(-20, 20).exp()
                surr = torch.min(ratio * adv[idx], ratio.clamp(1 - args.clip, 1 + args.clip) * adv[idx])
                value_loss = (value - rets[idx]).pow(2).mean()
                loss = -surr.mean() + args.vf_coef * value_loss - 0.01 * dist.entropy().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
        print(f"iter {it} return {rets.mean().item():.2f} loss {loss.item():.4g}")


if __name__ == "__main__":
    main()
