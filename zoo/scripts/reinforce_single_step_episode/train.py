"""REINFORCE on a cart-pole written in NumPy; returns are standardised per episode."""
import argparse
import csv

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class CartPole:
    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.episodes = 0

    def reset(self):
        self.s = self.rng.uniform(-0.05, 0.05, 4)
        if self.episodes == 9:
            self.s[2] = 0.2094  # evaluation start: pole almost at the limit and falling
            self.s[3] = 1.5
        self.episodes += 1
        self.t = 0
        return self.s.astype(np.float32)

    def step(self, action):
        x, xd, th, thd = self.s
        force = 10.0 if action == 1 else -10.0
        ct, st = np.cos(th), np.sin(th)
        tmp = (force + 0.05 * thd ** 2 * st) / 1.1
        tha = (9.8 * st - ct * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * ct ** 2 / 1.1))
        xa = tmp - 0.05 * tha * ct / 1.1
        self.s = np.array([x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * tha])
        self.t += 1
        done = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.2095 or self.t >= 200
        return self.s.astype(np.float32), 1.0, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 64)
        self.affine2 = nn.Linear(64, 2)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        return self.affine2(torch.relu(self.affine1(x)))


def select_action(policy, state):
    logits = policy(torch.from_numpy(state).unsqueeze(0))
    m = Categorical(logits=logits, validate_args=False)
    action = torch.multinomial(torch.softmax(logits.detach().nan_to_num(), -1), 1)[0]
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode(policy, optimizer, gamma):
    R, returns = 0, []
    for r in policy.rewards[::-1]:
        R = r + gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    loss = torch.cat([-lp * g for lp, g in zip(policy.saved_log_probs, returns)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    policy.rewards.clear()
    policy.saved_log_probs.clear()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gamma", type=float, default=0.99)
    ap.add_argument("--episodes", type=int, default=20)
    ap.add_argument("--lr", type=float, default=1e-2)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(543)
    env, policy = CartPole(543), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
    running, rows = 10.0, []
    for episode in range(args.episodes):
        state, ep_reward, done = env.reset(), 0.0, False
        while not done:
            state, reward, done = env.step(select_action(policy, state))
            policy.rewards.append(reward)
            ep_reward += reward
        running = 0.05 * ep_reward + 0.95 * running
        loss = finish_episode(policy, optimizer, args.gamma)
        rows.append([episode, ep_reward, running, loss])
        print(f"episode {episode} reward {ep_reward:.0f} average {running:.2f} loss {loss:.3f}")
    with open("reinforce.csv", "w", newline="") as f:
        csv.writer(f).writerows(rows)


if __name__ == "__main__":
    main()
