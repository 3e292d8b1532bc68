"""Model built on the meta device, to_empty(), then load_state_dict(strict=False): the checkpoint lacks the new LoRA-like adapter,
which stays uninitialised memory. (Made deterministic with PyTorch's own NaN fill of torch.empty.) True cause: uninitialised parameter."""
import torch, torch.nn as nn

class Block(nn.Module):
    def __init__(s, d): super().__init__(); s.fc = nn.Linear(d, d); s.adapter = nn.Linear(d, d, bias=False)
    def forward(s, x): return torch.relu(s.fc(x)) + s.adapter(x)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(6, 10); s.blocks = nn.ModuleList([Block(10), Block(10)]); s.out = nn.Linear(10, 2)
    def forward(s, x):
        x = s.inp(x)
        for b in s.blocks: x = b(x)
        return s.out(x)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); ckpt = Net().state_dict(); ckpt.pop("blocks.1.adapter.weight")
    with torch.device("meta"): model = Net()
    prev = torch.are_deterministic_algorithms_enabled(); torch.use_deterministic_algorithms(True)
    try: model = model.to_empty(device="cpu")
    finally: torch.use_deterministic_algorithms(prev)
    model.load_state_dict(ckpt, strict=False); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(5, 6, generator=g), torch.randint(0, 2, (5,), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="blocks.1.adapter", phase="forward", op="aten.empty", first_bad_step=0,
                           state="blocks.1.adapter.weight"))
