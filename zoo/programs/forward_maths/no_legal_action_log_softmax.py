"""Board-game policy: illegal moves get -inf before log_softmax; one stored state is a stalemate with no legal move at all.
True cause: fully masked row in (log-)softmax."""
import torch, torch.nn as nn

class MaskedPolicy(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(24, 9)
    def forward(s, h, legal): return torch.log_softmax(s.fc(h).masked_fill(~legal, -torch.inf), -1)
class AZ(nn.Module):
    def __init__(s): super().__init__(); s.tower = nn.Sequential(nn.Linear(9, 24), nn.ReLU()); s.policy = MaskedPolicy(); s.value = nn.Linear(24, 1)
    def forward(s, board): h = s.tower(board); return s.policy(h, board == 0), torch.tanh(s.value(h)).squeeze(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = AZ(); opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    g = torch.Generator().manual_seed(3); batches = []
    for i in range(7):
        board = torch.randint(-1, 2, (8, 9), generator=g).float(); board[:, 0] = 0
        if i == 4: board[6] = torch.tensor([1., -1, 1, -1, 1, -1, -1, 1, -1])
        batches.append((board, (board == 0).float().argmax(-1), torch.randint(-1, 2, (8,), generator=g).float()))
    def loss_fn(m, b):
        lp, v = m(b[0]); return nn.functional.nll_loss(lp, b[1]) + nn.functional.mse_loss(v, b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="policy", phase="forward", op="aten._log_softmax", first_bad_step=4, grads_finite=True))
