"""A small normaliser-free ResNet on synthetic 3x16x16 images, SGD with momentum, validation and best checkpoint."""
import argparse
import json

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1)
        self.short = nn.Conv2d(cin, cout, 1, stride) if (stride != 1 or cin != cout) else nn.Identity()
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x):
        out = self.conv2(self.act(self.conv1(x)))
        return self.act(out + self.short(x))


class ResNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1)
        self.layers = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 32, 2), BasicBlock(32, 64, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(self.pool(self.layers(self.stem(x))).flatten(1))


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, 5, (n,), generator=g)
    return TensorDataset(proto[y] + 0.7 * torch.randn(n, 3, 16, 16, generator=g), y)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hit = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return hit / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=4.0)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = DataLoader(make_data(320, 1), batch_size=args.batch_size, shuffle=True,
                       generator=torch.Generator().manual_seed(3))
    val = DataLoader(make_data(96, 2), batch_size=48)
    model = ResNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2], gamma=0.1)
    best, history = 0.0, []
    for epoch in range(args.epochs):
        running = 0.0
        for images, labels in train:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
        scheduler.step()
        acc = validate(model, val)
        history.append({"epoch": epoch, "loss": running / len(train), "acc": acc})
        print(history[-1])
        if acc > best:
            best = acc
            torch.save(model.state_dict(), "best.pt")
    with open("history.json", "w") as f:
        json.dump(history, f)


if __name__ == "__main__":
    main()
