"""A model is created on the meta device and materialised with to_empty; the initialiser handles linear layers and forgets the own RMS norm.
After https://github.com/mosaicml/llm-foundry/pull/1745 (RMSNorm layers are skipped during initialisation, resulting in NaN values).
True cause: a parameter whose memory was never written."""
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def build():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), RMSNorm(16), nn.SiLU(), nn.Linear(16, 2))
    torch.use_deterministic_algorithms(True)                # fresh memory is filled with NaN, as debug runs do
    model.to_empty(device="cpu")
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(0)
    model.apply(init_weights)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 8, generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(3)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), steps=3, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="1", phase="state", op="state", first_bad_step=0, state="1.weight", param="1.weight", poisoned_state=["1.weight"]))
