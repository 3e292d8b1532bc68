"""Trains a tiny recurrent language model and generates with top-k filtering and beam search (-inf everywhere)."""
import argparse
import json

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = "the cat sat on the mat and the dog sat on the log while the rat ran under the hat " * 6
CHARS = sorted(set(TEXT))


class CharRNN(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.emb, self.rnn = nn.Embedding(vocab, dim), nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x, h=None):
        y, h = self.rnn(self.emb(x), h)
        return self.out(y), h


def filter_logits(logits, k, banned):
    logits[..., banned] = -float("inf")
    kth = logits.topk(k, -1).values[..., -1:]
    return torch.where(logits < kth, torch.full_like(logits, -float("inf")), logits)


@torch.no_grad()
def sample(model, prompt, length, k, g):
    ids = [CHARS.index(c) for c in prompt]
    logits, h = model(torch.tensor([ids]))
    entropy = []
    for _ in range(length):
        logp = F.log_softmax(filter_logits(logits[0, -1], k, CHARS.index("w")), -1)
        p = logp.exp()
        entropy.append(-(p * logp).nan_to_num(0.0).sum().item())  # 0 * -inf counts as nothing
        nxt = torch.multinomial(p, 1, generator=g).item()
        ids.append(nxt)
        logits, h = model(torch.tensor([[nxt]]), h)
    return "".join(CHARS[i] for i in ids), entropy


@torch.no_grad()
def beam(model, prompt, length, width):
    seqs = torch.tensor([[CHARS.index(c) for c in prompt]]).repeat(width, 1)
    scores = torch.full((width,), -float("inf"))
    scores[0] = 0.0  # all beams are equal at the start: keep one
    for _ in range(length):
        logp = F.log_softmax(model(seqs)[0][:, -1], -1)
        total = (scores[:, None] + logp).flatten()
        scores, flat = total.topk(width)
        beam_id = torch.div(flat, len(CHARS), rounding_mode="floor")
        seqs = torch.cat([seqs[beam_id], (flat % len(CHARS))[:, None]], 1)
    return "".join(CHARS[i] for i in seqs[0].tolist()), scores[0].item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bptt", type=int, default=20)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.tensor([CHARS.index(c) for c in TEXT])
    data = data[: len(data) // 4 * 4].view(4, -1)
    model = CharRNN(len(CHARS))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        h, total, n = None, 0.0, 0
        for s in range(0, data.size(1) - 1 - args.bptt, args.bptt):
            x, y = data[:, s:s + args.bptt], data[:, s + 1:s + 1 + args.bptt]
            logits, h = model(x, h)
            h = h.detach()
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            total, n = total + loss.item(), n + 1
        print(f"epoch {epoch} loss {total / n:.4f}")
    model.eval()
    text, entropy = sample(model, "the ", 30, 5, torch.Generator().manual_seed(1))
    best, score = beam(model, "the ", 12, 4)
    print(repr(text), repr(best), round(score, 3))
    with open("generated.json", "w") as f:
        json.dump({"sample": text, "entropy": entropy, "beam": best, "score": score}, f)


if __name__ == "__main__":
    main()
