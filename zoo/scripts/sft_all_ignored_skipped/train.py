"""Supervised fine-tuning of a tiny language model; prompts are masked with -100, long samples are truncated."""
import argparse
import json
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

IGNORE = -100


def make_samples(n, seed):
    rng = random.Random(seed)
    samples = []
    for i in range(n):
        plen = rng.randint(3, 8)
        if i % 4 == 0 and 40 <= i < 48:
            plen = 30
        prompt = [rng.randint(1, 29) for _ in range(plen)]
        answer = [(t * 3) % 29 + 1 for t in prompt[:4]] + [30]
        samples.append((prompt, answer))
    return samples


def collate(batch, max_length):
    ids = torch.zeros(len(batch), max_length, dtype=torch.long)
    labels = torch.full((len(batch), max_length), IGNORE)
    for row, (prompt, answer) in enumerate(batch):
        tokens = (prompt + answer)[:max_length]
        ids[row, :len(tokens)] = torch.tensor(tokens)
        keep = tokens[len(prompt):]
        if keep:
            labels[row, len(prompt):len(tokens)] = torch.tensor(keep)
    return ids, labels


class TinyLM(nn.Module):
    def __init__(self, vocab=32, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids, labels):
        logits = self.out(self.rnn(self.emb(ids))[0])
        return F.cross_entropy(logits[:, :-1].reshape(-1, 32), labels[:, 1:].reshape(-1), ignore_index=IGNORE)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-length", type=int, default=24)
    ap.add_argument("--batch-size", type=int, default=1)
    ap.add_argument("--grad-accum", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = TinyLM()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = make_samples(96, 3)
    log, micro, step, total = [], 0, 0, 0.0
    for start in range(0, len(data), args.batch_size):
        ids, labels = collate(data[start:start + args.batch_size], args.max_length)
        loss = model(ids, labels) / args.grad_accum
        if torch.isnan(loss):
            print(f"sample {start}: loss is nan, skipping this micro-batch")
        else:
            loss.backward()
            total += loss.item()
        micro += 1
        if micro % args.grad_accum == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            log.append({"step": step, "loss": total})
            total, step = 0.0, step + 1
    print("last", log[-1])
    with open("sft.json", "w") as f:
        json.dump(log, f)


if __name__ == "__main__":
    main()
