"""Soft actor-critic with automatic entropy tuning on a one-dimensional point mass (NumPy environment)."""
import argparse
import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class PointMass:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.x, self.v, self.t = self.rng.uniform(-1, 1), 0.0, 0
        return np.array([self.x, self.v], dtype=np.float32)

    def step(self, a):
        self.v = 0.9 * self.v + 0.1 * float(a)
        self.x = float(np.clip(self.x + self.v, -2, 2))
        self.t += 1
        return np.array([self.x, self.v], dtype=np.float32), -self.x ** 2 - 0.01 * float(a) ** 2, self.t >= 50


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, o))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(2, 2)

    def forward(self, obs):
        mu, log_std = self.net(obs).chunk(2, -1)
        dist = torch.distributions.Normal(mu, log_std.clamp(-5, 2).exp(), validate_args=False)
        u = dist.rsample()
        logp = dist.log_prob(u) - 2 * (np.log(2.0) - u - F.softplus(-2 * u))
        return torch.tanh(u), logp.sum(-1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(3, 1), mlp(3, 1)

    def forward(self, o, a):
        z = torch.cat([o, a], -1)
        return self.q1(z).squeeze(-1), self.q2(z).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--alpha-lr", type=float, default=10.0)
    ap.add_argument("--target-entropy", type=float, default=3.0)
    ap.add_argument("--start", type=int, default=100)
    ap.add_argument("--total", type=int, default=160)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    env, actor, critic = PointMass(1), Actor(), Critic()
    target = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = torch.zeros((), requires_grad=True)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=args.lr)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=args.lr)
    alpha_opt = torch.optim.Adam([log_alpha], lr=args.alpha_lr)
    buffer, obs = [], env.reset()
    for t in range(args.total):
        if t < args.start:
            act = rng.uniform(-1, 1, 1).astype(np.float32)
        else:
            with torch.no_grad():
                act = actor(torch.from_numpy(obs)[None])[0][0].numpy()
        nxt, rew, done = env.step(act[0])
        buffer.append((obs, act, rew, nxt, float(done)))
        obs = env.reset() if done else nxt
        if t < args.start:
            continue
        rows = rng.integers(0, len(buffer), 64)
        o, a, r, o2, d = (torch.as_tensor(np.array([buffer[i][k] for i in rows]), dtype=torch.float32) for k in range(5))
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = actor(o2)
            backup = r + 0.99 * (1 - d) * (torch.min(*target(o2, a2)) - alpha * logp2)
        q1, q2 = critic(o, a)
        critic_loss = F.mse_loss(q1, backup) + F.mse_loss(q2, backup)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()
        pi, logp = actor(o)
        actor_loss = (alpha * logp - torch.min(*critic(o, pi))).mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()
        alpha_loss = -(log_alpha * (logp.detach() + args.target_entropy)).mean()
        alpha_opt.zero_grad()
        alpha_loss.backward()
        alpha_opt.step()
        with torch.no_grad():
            for p, tp in zip(critic.parameters(), target.parameters()):
                tp.lerp_(p, 0.005)
        if t % 10 == 0:
            print(f"t {t} critic {critic_loss.item():.4g} actor {actor_loss.item():.4g} alpha {alpha.item():.4g}")


if __name__ == "__main__":
    main()
