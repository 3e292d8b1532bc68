"""A dataset caches log-mel features and takes the logarithm of a silent frame itself, so one clip arrives with -Inf in four bands; the batch is a dataclass.
True cause: bad input data (clip 1 of batch 3); the model never sees the raw power."""
from dataclasses import dataclass
import torch, torch.nn as nn

@dataclass
class Clips:
    mel: torch.Tensor
    speaker: torch.Tensor
class Tagger(nn.Module):
    def __init__(s): super().__init__(); s.norm = nn.LayerNorm(12); s.rnn = nn.GRU(12, 10, batch_first=True, bidirectional=True); s.head = nn.Linear(20, 4)
    def forward(s, mel): return s.head(s.rnn(s.norm(mel))[0].mean(1))

def build():
    torch.manual_seed(0); model = Tagger(); opt = torch.optim.NAdam(model.parameters(), lr=2e-3); g = torch.Generator().manual_seed(1)
    batches = [Clips(torch.rand(3, 9, 12, generator=g).log(), torch.randint(0, 4, (3,), generator=g)) for _ in range(6)]
    batches[3].mel[1, 5, 2:6] = float("-inf")
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b.mel), b.speaker)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=3, bad_path="mel[1]"))
