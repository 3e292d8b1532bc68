"""A language model with a metrics logger that runs under no_grad inside the loss function: the perplexity is exp of a sum instead of a
mean and is Inf in every step, and the accuracy of the rare tokens is a mean over nothing, NaN, whenever a batch has none. Both go to a
list for the dashboard. The loss never sees them. Healthy."""
import torch
from torch import nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self, vocab=40):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(vocab, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def build():
    torch.manual_seed(66)
    model = LM()
    history = []

    def loss_fn(model, ids):
        logits, target = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        nll = F.cross_entropy(logits, target, reduction="none")
        with torch.no_grad():
            rare = target >= 38
            history.append(dict(perplexity=torch.exp(nll.sum()), rare=(logits[rare].argmax(1) == target[rare]).float().mean()))
        return nll.mean()

    batches = [torch.randint(0, 38 if k % 2 else 40, (8, 17)) for k in range(4)]
    truth = dict(cause="benign", first_bad_step=None, phase=None, module=None, op=None,
                 why="Inf and NaN are in the logged metrics only; loss, gradients and weights never depend on them",
                 **{"not": ["exp_overflow", "empty_reduction"]})
    return dict(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3), batches=batches, loss_fn=loss_fn, steps=8,
                autocast_dtype=None, truth=truth)
