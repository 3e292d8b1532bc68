"""Policy gradient for a board game: logits of invalid moves are set to -inf before the softmax.

Healthy: each position has at least one valid move and only valid moves were played, so the -inf never
reaches the loss, nor its gradient."""

import torch
import torch.nn.functional as F
from torch import nn


class MoveNet(nn.Module):
    def __init__(self, cells=9):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(cells, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.move = nn.Linear(48, cells)

    def forward(self, board):
        logits = self.move(self.body(board))
        return logits.masked_fill(board != 0, float("-inf"))


def games():
    g = torch.Generator().manual_seed(9)
    for _ in range(25):
        board = torch.randint(-1, 2, (32, 9), generator=g).float()
        board[torch.arange(32), torch.randint(0, 9, (32,), generator=g)] = 0.0
        free = (board == 0).float()
        move = torch.multinomial(free, 1, generator=g).squeeze(1)
        outcome = torch.randint(-1, 2, (32,), generator=g).float()
        yield board, move, outcome


def build():
    torch.manual_seed(0)
    model = MoveNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_fn(model, batch):
        board, move, outcome = batch
        logp = F.log_softmax(model(board), dim=1)
        return -(logp.gather(1, move[:, None]).squeeze(1) * outcome).mean()

    return dict(model=model, optimizer=optimizer, batches=list(games()), loss_fn=loss_fn, steps=25,
                autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
