"""A language model is built on the meta device, given memory with to_empty() and loaded from a checkpoint. The rotary frequencies are a
non-persistent buffer: not in the checkpoint, computed only in __init__ (on meta), hence never filled.
True cause: uninitialised memory in rope.inv_freq. (Deterministic by PyTorch's own fill mode, which fills fresh memory with NaN.)"""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Rope(nn.Module):
    def __init__(s, d): super().__init__(); s.register_buffer("inv_freq", 1e4 ** (-torch.arange(0, d, 2).float() / d), persistent=False)
    def forward(s, x):
        ang = torch.arange(x.shape[1])[:, None] * s.inv_freq; a, b = x.chunk(2, -1)
        return torch.cat([a * ang.cos() - b * ang.sin(), a * ang.sin() + b * ang.cos()], -1)
class LM(nn.Module):
    def __init__(s, d=16): super().__init__(); s.emb = nn.Embedding(21, d); s.q, s.k, s.v = (nn.Linear(d, d) for _ in range(3)); s.rope = Rope(d); s.head = nn.Linear(d, 21)
    def forward(s, ids):
        x = s.emb(ids); h = nn.functional.scaled_dot_product_attention(s.rope(s.q(x)), s.rope(s.k(x)), s.v(x), is_causal=True); return s.head(x + h)

def build():
    torch.manual_seed(25); ckpt = LM().state_dict()
    with torch.device("meta"): model = LM()
    prev = torch.are_deterministic_algorithms_enabled(); torch.use_deterministic_algorithms(True)
    try: model.to_empty(device="cpu")
    finally: torch.use_deterministic_algorithms(prev)
    model.load_state_dict(ckpt)                                              # strict, and yet nothing is reported missing
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(29)
    batches = [torch.randint(0, 21, (3, 9), generator=g) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="rope", phase="forward", op="aten.empty", first_bad_step=0,
                           state="rope.inv_freq", note="buffer is non-finite BEFORE step 0"))
