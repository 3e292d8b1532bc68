"""Odds ratio preference optimisation. A prompt longer than the limit leaves no token of the chosen answer; its mean log-probability is a sum of nothing
over at least one, thus exactly 0, a probability of one, and the odds are infinite.
After https://github.com/huggingface/trl/issues/1473 (exp of the log-probability can be 1, then log1p gives inf; prompts beyond max_length).
True cause: the logarithm of 1 - p at p = 1."""
import torch
import torch.nn.functional as F
from torch import nn

MAX_LENGTH = 10
IGNORE = -100


class CausalLM(nn.Module):
    def __init__(self, vocab=20, d=24):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.block = nn.TransformerEncoderLayer(d, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        n = ids.shape[1]
        causal = torch.ones(n, n).triu(1).bool()
        return self.head(self.block(self.wte(ids), src_mask=causal))


def answer_logps(logits, labels):
    labels = labels[:, 1:].clone()
    mask = labels != IGNORE
    labels[~mask] = 0
    per_token = logits[:, :-1].log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2)
    return (per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def orpo(chosen, rejected, beta=0.1):
    log_odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return (-F.logsigmoid(log_odds) * beta - chosen).mean()


def tokenize(prompt_length, answer_length, g):
    ids = torch.randint(1, 20, (prompt_length + answer_length,), generator=g)
    labels = ids.clone()
    labels[:prompt_length] = IGNORE
    ids, labels = ids[:MAX_LENGTH], labels[:MAX_LENGTH]
    pad = MAX_LENGTH - len(ids)
    return F.pad(ids, (0, pad)), F.pad(labels, (0, pad), value=IGNORE)


def build():
    torch.manual_seed(1)
    lm = CausalLM()
    opt = torch.optim.AdamW(lm.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(5)
    data = []
    for prompts in ([3, 5, 4, 2], [6, 2, 5, 3], [4, 4, 11, 3], [2, 6, 3, 5]):
        sides = [[tokenize(n, 4 + k, g) for n in prompts] for k in (0, 1)]
        data.append([tuple(torch.stack(part) for part in zip(*side)) for side in sides])

    def loss_fn(model, pair):
        (c_ids, c_labels), (r_ids, r_labels) = pair
        return orpo(answer_logps(model(c_ids), c_labels), answer_logps(model(r_ids), r_labels))

    return dict(model=lm, optimizer=opt, batches=data, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log1p", first_bad_step=2, sample=2,
                           line="torch.log1p(-chosen.exp())", also=("empty_reduction",),
                           why="no answer token is left in example 2, so its log-probability is 0 and 1 - exp(0) is 0"))
