"""DPO with average log-probabilities: the prompt of one pair is as long as max_length, no token of the answer is left, 0 / 0.
After https://github.com/allenai/open-instruct/pull/1625 (every label is -100: the loss-mask count is 0).
True cause: a mean over zero tokens."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class TinyLM(nn.Module):
    def __init__(self, v=13, d=16):
        super().__init__()
        self.wte, self.mix, self.head = nn.Embedding(v, d), nn.Linear(d, d), nn.Linear(d, v, bias=False)

    def forward(self, ids):
        x = self.wte(ids)
        x = x + torch.tanh(self.mix(x.cumsum(1) / torch.arange(1, ids.size(1) + 1)[None, :, None]))
        return self.head(x)


def get_batch_logps(logits, labels):
    labels = labels[:, 1:].clone()
    mask = labels != -100
    labels[~mask] = 0
    per_token = F.log_softmax(logits[:, :-1], -1).gather(-1, labels[..., None]).squeeze(-1)
    return (per_token * mask).sum(-1) / mask.sum(-1)


def build():
    torch.manual_seed(9)
    lm = TinyLM()
    opt = torch.optim.AdamW(lm.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(10)
    batches = []
    for prompts in ([3, 4], [2, 5], [4, 8], [3, 3]):
        ids = torch.randint(0, 13, (2, 2, 8), generator=g)            # pair, chosen/rejected, token
        labels = ids.clone()
        for i, p in enumerate(prompts):
            labels[i, :, :p] = -100
        batches.append({"ids": ids, "labels": labels, "ref": torch.full((2, 2), -2.5)})

    def loss_fn(m, b, beta=0.1):
        logps = get_batch_logps(m(b["ids"].flatten(0, 1)), b["labels"].flatten(0, 1)).view(2, 2)
        margin = (logps - b["ref"])[:, 0] - (logps - b["ref"])[:, 1]
        return -F.logsigmoid(beta * margin).mean()

    return dict(model=lm, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=("division_by_zero",), module="loss", phase="forward", op="aten.div", first_bad_step=2, line="/ mask.sum(-1)", sample=1))
