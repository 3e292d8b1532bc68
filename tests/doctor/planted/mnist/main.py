import torch
from net import Net
from torch import nn


def train_epoch(model, loader, optimizer, criterion, device):
    model.train()
    for image, digit in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(image.to(device)), digit.to(device))
        loss.backward()
        optimizer.step()


def main(loader):
    device = torch.device("cuda")
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        train_epoch(model, loader, optimizer, nn.CrossEntropyLoss(), device)


if __name__ == "__main__":
    main(torch.load("loader.pt"))
