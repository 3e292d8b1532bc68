"""Two tasks are weighted by their perplexities on a small validation set, computed after every second batch in evaluation mode. The second task's validation text is in
another script; once the model is sure of itself, its loss there is above 88 and its perplexity inf, and inf / inf is NaN.
After https://github.com/facebookresearch/mmf/issues/1251 (NaN appears at a fixed number of iterations after every start, not at a fixed batch).
True cause: exp overflows in the evaluation, and the weights that training reads are poisoned."""
import torch
import torch.nn.functional as F
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self, d=6, classes=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, 16), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(16, classes), nn.Linear(16, classes)])
        self.register_buffer("task_weight", torch.tensor([0.5, 0.5]))

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


@torch.no_grad()
def rebalance(model, validation):
    model.eval()
    perplexity = torch.stack([F.cross_entropy(model(x, task), y).exp() for task, (x, y) in enumerate(validation)])
    model.task_weight.copy_(perplexity / perplexity.sum())
    model.train()


def build():
    torch.manual_seed(0)
    model = TwoHeads()
    with torch.no_grad():
        model.heads[1].weight.mul_(3.0)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(5)
    train = [[(torch.randn(8, 6, generator=g), torch.randint(0, 4, (8,), generator=g)) for _ in range(2)] for _ in range(6)]
    valid = [[(torch.randn(4, 6, generator=g) * s, torch.randint(0, 4, (4,), generator=g)) for s in scales] for scales in ((1, 1), (1, 300))]

    def stream():
        for i, batch in enumerate(train):
            if i in (2, 4):
                rebalance(model, valid[i // 2 - 1])
            yield batch

    def loss_fn(m, batch):
        return sum(w * F.cross_entropy(m(x, t), y) for t, (w, (x, y)) in enumerate(zip(m.task_weight, batch)))

    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="exp_overflow", also=("state_overwritten", "input_out_of_scale"), module="loss", phase="state", op="state", state="task_weight", first_bad_step=4,
                           poisoned_state=["task_weight"], why="the perplexity of the second validation set is inf, and the weights written from it are NaN"))
