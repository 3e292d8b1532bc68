"""CTC on a Mamba encoder. Every target is shorter than its input, the author checks that (frames >= characters) and drops the others. But
CTC needs one blank between two equal characters: 'aabbcc' in 7 frames has no alignment, and the loss of that sample is inf.
True cause: infeasible alignment (target plus repeats is longer than the input). TRAP: the length check passes."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import MambaConfig, MambaModel


class Reader(nn.Module):
    def __init__(self, chars=10):
        super().__init__()
        self.inp = nn.Linear(5, 16)
        self.mamba = MambaModel(MambaConfig(vocab_size=4, hidden_size=16, state_size=4, num_hidden_layers=1, use_cache=False))
        self.out = nn.Linear(16, chars)

    def forward(self, x):
        return self.out(self.mamba(inputs_embeds=self.inp(x)).last_hidden_state)


def build():
    torch.manual_seed(0)
    model = Reader()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        text = torch.tensor([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1], [2, 4, 6, 8, 9, 7]])
        if i == 2:
            text[1] = torch.tensor([3, 3, 5, 5, 7, 7])
        batches.append({"x": torch.randn(3, 10, 5, generator=g), "frames": torch.tensor([10, 7, 9]), "text": text, "chars": torch.tensor([6, 6, 6])})

    def loss_fn(m, b):
        fits = b["frames"] >= b["chars"]
        logp = m(b["x"])[fits].log_softmax(-1).transpose(0, 1)
        per = F.ctc_loss(logp, b["text"][fits], b["frames"][fits], b["chars"][fits], reduction="none")
        return (per / b["chars"][fits]).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=2, trap=True))
