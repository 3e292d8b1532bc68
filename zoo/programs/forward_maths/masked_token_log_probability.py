"""Per-token log-probabilities are multiplied by the completion mask; a padding token is banned by the logits processor, so -inf times 0 is NaN.
After https://github.com/allenai/open-instruct/pull/1685 (masked tokens with log probability -inf: -inf * 0 = NaN).
True cause: zero times infinity, the infinity from a mask."""
import torch
from torch import nn

PAD = 0


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(9, 10)
        self.ff = nn.Linear(10, 9)

    def forward(self, ids):
        logits = self.ff(self.tok(ids))
        logits[..., PAD] = float("-inf")                # never generate padding
        return logits


def build():
    torch.manual_seed(8)
    model = LM()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(8)
    full = [torch.randint(1, 9, (4, 6), generator=g) for _ in range(4)]
    full[2][3, 4:] = PAD                                # the first short completion
    batches = [{"input_ids": f} for f in full]

    def loss_fn(m, b):
        ids = b["input_ids"]
        lp = m(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        mask = (ids[:, 1:] != PAD).float()
        return -(lp * mask).sum() / mask.sum()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", phase="forward", op="aten.mul", first_bad_step=2, line="-(lp * mask).sum()", sample=3))
