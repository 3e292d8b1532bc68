"""OPT with bottleneck adapters, built on the meta device and materialised by to_empty(). The checkpoint has the base model and the down
projections; the up projections are missing, strict=False hides it, and they keep whatever was in memory.
True cause: uninitialised memory (made deterministic by PyTorch's own fill_uninitialized_memory while building)."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import OPTConfig, OPTModel

VOCAB = 30


class Adapter(nn.Module):
    def __init__(self, d=16, r=4):
        super().__init__()
        self.down, self.up = nn.Linear(d, r), nn.Linear(r, d)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        with torch.device("meta"):
            self.adapter = Adapter()
        self.head = nn.Linear(16, VOCAB)

    def forward(self, ids):
        return self.head(self.adapter(self.base(input_ids=ids, use_cache=False).last_hidden_state))


def build():
    torch.manual_seed(0)
    cfg = OPTConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, ffn_dim=24, num_attention_heads=2, max_position_embeddings=24,
                    word_embed_proj_dim=16, dropout=0.0, attention_dropout=0.0, layerdrop=0.0)
    model = Adapted(OPTModel(cfg))
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        model.adapter.to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(before)
    reference = Adapter()
    model.adapter.load_state_dict({k: v for k, v in reference.state_dict().items() if k.startswith("down")}, strict=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(3, VOCAB, (3, 8), generator=g) for _ in range(3)]

    def loss_fn(m, x):
        return F.cross_entropy(m(x)[:, :-1].reshape(-1, VOCAB), x[:, 1:].reshape(-1))

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="adapter.up", phase="forward", op="aten.empty", first_bad_step=0,
                           state="adapter.up.weight", also_phase=["state"], also_op=[None, "aten.addmm"]))
