"""generate: sample names from a bigram+MLP model with a temperature that is annealed over the positions."""
import argparse
import json
import string

import torch
import torch.nn as nn

VOCAB = "." + string.ascii_lowercase


class NameModel(nn.Module):
    def __init__(self, context=3, dim=12, hidden=48):
        super().__init__()
        self.context = context
        self.emb = nn.Embedding(len(VOCAB), dim)
        self.fc1 = nn.Linear(context * dim, hidden)
        self.fc2 = nn.Linear(hidden, len(VOCAB))

    def forward(self, idx):
        return self.fc2(torch.tanh(self.fc1(self.emb(idx).flatten(1))))


def fake_pretrained(path):
    """Stands for the download of the released weights."""
    torch.manual_seed(2024)
    torch.save(NameModel().state_dict(), path)


def temperature_at(pos, start, end, steps):
    frac = min(pos / steps, 1.0)
    return start + (end - start) * frac


@torch.no_grad()
def generate(model, prompt, length, args):
    ids = [0] * model.context + [VOCAB.index(c) for c in prompt]
    trace = []
    for pos in range(length):
        logits = model(torch.tensor([ids[-model.context:]]))[0]
        logits[0] = -float("inf")  # never stop early
        temp = temperature_at(pos, args.temp_start, args.temp_end, args.temp_steps)
        logits = logits / temp
        if args.top_k:
            kth = torch.topk(logits, args.top_k).values[-1]
            logits = logits.masked_fill(logits < kth, -float("inf"))
        probs = torch.softmax(logits, dim=-1)
        nxt = torch.multinomial(probs, 1).item()
        ids.append(nxt)
        trace.append({"pos": pos, "temp": temp, "p": probs[nxt].item()})
    return "".join(VOCAB[i] for i in ids[model.context:]), trace


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--weights", default="names.pt")
    ap.add_argument("--prompts", nargs="*", default=["an", "bo", "chr"])
    ap.add_argument("--temp-start", type=float, default=1.0)
    ap.add_argument("--temp-end", type=float, default=0.0)
    ap.add_argument("--temp-steps", type=int, default=8)
    ap.add_argument("--length", type=int, default=12)
    ap.add_argument("--top-k", type=int, default=8)
    args = ap.parse_args()
    torch.set_num_threads(1)
    fake_pretrained(args.weights)
    model = NameModel()
    model.load_state_dict(torch.load(args.weights))
    model.eval()
    torch.manual_seed(7)
    results = []
    for prompt in args.prompts:
        name, trace = generate(model, prompt, args.length, args)
        print(prompt, "->", name)
        results.append({"prompt": prompt, "name": name, "trace": trace})
    with open("generated.json", "w") as f:
        json.dump(results, f)


if __name__ == "__main__":
    main()
