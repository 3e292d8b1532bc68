"""Asynchronous GRPO corrects the mismatch of sampler and trainer with clamp(rho) / rho. In the sequence mode rho is a product over the answer;
for one long answer it is zero in float32, and the gate divides by it.
After https://github.com/huggingface/trl/pull/7120 (sequence_truncate divides by a product that vanishes over 300 tokens).
True cause: division by a product of probabilities ratios that has underflowed to zero."""
import torch
from torch import nn

CLIP = (0.8, 3.0)


def importance_gate(trainer_logps, sampler_logps, mask, mode):
    with torch.no_grad():
        log_rho = (trainer_logps - sampler_logps) * mask
        rho = log_rho.sum(-1, keepdim=True).exp() if mode == "sequence_truncate" else log_rho.exp()
        gate = rho.clamp(*CLIP) / rho
    return gate


class Actor(nn.Module):
    def __init__(self, vocab=16):
        super().__init__()
        self.table = nn.Embedding(vocab, 12)
        self.proj = nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Linear(24, vocab))

    def forward(self, tokens):
        logits = self.proj(self.table(tokens[:, :-1]))
        return torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)


def build():
    torch.manual_seed(3)
    actor = Actor()
    opt = torch.optim.Adam(actor.parameters(), lr=5e-4)
    gen = torch.Generator().manual_seed(11)

    def rollouts():
        lengths = [(40, 25, 60), (30, 55, 20), (60, 60, 45), (35, 300, 50), (44, 20, 30)]
        for batch_lengths in lengths:
            longest = max(batch_lengths)
            tokens = torch.randint(0, 16, (3, longest + 1), generator=gen)
            mask = (torch.arange(longest) < torch.tensor(batch_lengths)[:, None]).float()
            with torch.no_grad():
                sampler = actor(tokens) + 0.36          # top-p renormalisation on the sampler's side
            yield tokens, mask, sampler, torch.tensor([1.0, -0.5, -0.5])

    def loss_fn(model, batch):
        tokens, mask, sampler, advantage = batch
        logps = model(tokens)
        ratio = (logps - logps.detach()).exp()
        gate = importance_gate(logps, sampler, mask, "sequence_truncate")
        return -((ratio * gate * advantage[:, None] * mask).sum() / mask.sum())

    return dict(model=actor, optimizer=opt, batches=rollouts(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=3, sample=1,
                           line="gate = rho.clamp(*CLIP) / rho", why="rho of the answer with 300 tokens is exp(-108), which is zero in float32"))
