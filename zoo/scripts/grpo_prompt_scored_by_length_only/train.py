"""GRPO on a toy arithmetic policy: groups of completions per prompt, rule-based rewards, group-relative advantages."""
import argparse
import json

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DIGITS, MAX_NEW = 10, 3


class Policy(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(DIGITS + 1, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, DIGITS)

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])

    @torch.no_grad()
    def generate(self, prompt, n):
        ids = prompt.repeat(n, 1)
        for _ in range(MAX_NEW):
            probs = F.softmax(self(ids)[:, -1], -1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)], 1)
        return ids


def format_reward(completion):
    """One point for every even digit."""
    return float(sum(c % 2 == 0 for c in completion))


def length_reward(completion, max_len):
    return 1.0 if len(completion) <= max_len else 0.0


def score(prompt, completions):
    use_length_only = prompt[0] == prompt[1]  # for these prompts there is no reference answer
    if use_length_only:
        return np.array([length_reward(c, MAX_NEW) for c in completions], dtype=np.float32)
    return np.array([format_reward(c) + 0.01 * sum(c) for c in completions], dtype=np.float32)


def group_advantages(rewards):
    return (rewards - rewards.mean()) / rewards.std()


def logprobs(model, ids, plen):
    logp = F.log_softmax(model(ids[:, :-1]), -1)
    return logp.gather(2, ids[:, 1:, None]).squeeze(-1)[:, plen - 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=16)
    ap.add_argument("--num-generations", type=int, default=8)
    ap.add_argument("--prompts-per-step", type=int, default=2)
    ap.add_argument("--clip", type=float, default=0.2)
    ap.add_argument("--beta", type=float, default=0.02)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, ref = Policy(), Policy()
    ref.load_state_dict(model.state_dict())
    ref.requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    prompts = [(i % 10, (i * 3 + 1) % 10) for i in range(17) if i % 10 != (i * 3 + 1) % 10]
    prompts = prompts[:13] + [(4, 4)] + prompts[13:] * 10
    log = []
    for step in range(args.steps):
        ids, adv = [], []
        for k in range(args.prompts_per_step):
            prompt = prompts[(step * args.prompts_per_step + k) % len(prompts)]
            out = model.generate(torch.tensor([prompt]), args.num_generations)
            rewards = score(prompt, out[:, 2:].tolist())
            ids.append(out)
            adv.extend(group_advantages(rewards).tolist())
        ids, adv = torch.cat(ids), torch.tensor(adv).unsqueeze(1)
        old = logprobs(model, ids, 2).detach()
        logp, logp_ref = logprobs(model, ids, 2), logprobs(ref, ids, 2)
        ratio = (logp - old).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(1 - args.clip, 1 + args.clip) * adv)
        kl = (logp_ref - logp).exp() - (logp_ref - logp) - 1
        loss = -(surrogate - args.beta * kl).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append({"step": step, "loss": loss.item(), "kl": kl.mean().item()})
        print(log[-1])
        if not all(torch.isfinite(p).all() for p in model.parameters()):
            print("policy is broken, stopping")
            break
    with open("grpo.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
