"""Fine-tune a whole model in float16 (`model.half()`), plain Adam: saves half of the memory."""
import argparse
import csv

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(12)
        self.ids = torch.randint(0, 60, (n, 10), generator=g)
        self.label = (self.ids[:, 0] > 30).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.label[i]


class Classifier(nn.Module):
    def __init__(self, vocab=64, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        h = torch.tanh(self.mix(self.emb(ids))).mean(1)
        return self.head(h)


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--dtype", default="float16")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Classifier().to(getattr(torch, args.dtype))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Reviews(192), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))
    rows = []
    for epoch in range(args.epochs):
        for ids, label in loader:
            optimizer.zero_grad()
            loss = criterion(model(ids).float(), label)
            loss.backward()
            optimizer.step()
            rows.append([epoch, loss.item()])
        print(f"epoch {epoch} loss {loss.item():.4f} acc {accuracy(model, loader):.3f}")
    with open("loss.csv", "w", newline="") as f:
        csv.writer(f).writerows(rows)


if __name__ == "__main__":
    main()
