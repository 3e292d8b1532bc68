"""A policy network masks illegal actions by -inf before log_softmax; in a terminal state no action is legal. The log-probability
is then taken in the loss function, under bf16 autocast.
True cause: a fully masked row (batch 2, state 5)."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 6)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        legal = torch.rand(8, 6, generator=g) < 0.5; legal[:, 0] = True
        if i == 2: legal[5] = False
        batches.append(dict(obs=torch.randn(8, 9, generator=g), legal=legal, action=torch.zeros(8, dtype=torch.long), ret=torch.randn(8, generator=g)))
    def loss_fn(m, b):
        logits = m(b["obs"]).float().masked_fill(~b["legal"], float("-inf"))
        logp = torch.log_softmax(logits, -1).gather(1, b["action"][:, None]).squeeze(1)
        return -(logp * b["ret"]).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.bfloat16,
                truth=dict(cause="softmax_fully_masked_row", module="loss", phase="forward", op="aten._log_softmax", first_bad_step=2, grads_finite=True))
