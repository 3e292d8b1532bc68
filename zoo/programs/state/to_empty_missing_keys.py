"""A model is built on the meta device, materialised by to_empty(), and loaded with strict=False from a checkpoint that lacks the new adapter:
its weights are whatever was in memory (NaN here, by PyTorch's own fill of uninitialised memory while building).
True cause: uninitialised memory in adapter.weight."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Linear(6, 6); s.adapter = nn.Linear(6, 6, bias=False); s.head = nn.Linear(6, 2)
    def forward(s, x): h = torch.relu(s.body(x)); return s.head(h + s.adapter(h))

def build():
    torch.manual_seed(0); saved = {k: v for k, v in Net().state_dict().items() if "adapter" not in k}
    before = torch.are_deterministic_algorithms_enabled(); torch.use_deterministic_algorithms(True)
    try:
        with torch.device("meta"): model = Net()
        model = model.to_empty(device="cpu")
    finally: torch.use_deterministic_algorithms(before)
    model.load_state_dict(saved, strict=False); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 6, generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(2)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=1, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="adapter", phase="forward", op="aten.empty", first_bad_step=0,
                           state="adapter.weight"))
