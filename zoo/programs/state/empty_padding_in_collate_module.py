"""Ragged batching inside the model: torch.empty for the padded tensor, only the real frames are written. With equal lengths all is
filled; the first ragged batch reads garbage. (NaN fill by PyTorch's deterministic mode.) True cause: uninitialised memory."""
import torch, torch.nn as nn

class Pad(nn.Module):
    def forward(s, seqs):
        prev = torch.are_deterministic_algorithms_enabled(); torch.use_deterministic_algorithms(True, warn_only=True)
        try: out = torch.empty(len(seqs), max(map(len, seqs)), seqs[0].shape[-1])
        finally: torch.use_deterministic_algorithms(prev)
        for i, q in enumerate(seqs): out[i, :len(q)] = q
        return out
class Net(nn.Module):
    def __init__(s): super().__init__(); s.pad = Pad(); s.conv = nn.Conv1d(4, 8, 3, padding=1); s.out = nn.Linear(8, 1)
    def forward(s, seqs): return s.out(torch.relu(s.conv(s.pad(seqs).transpose(1, 2))).amax(-1)).squeeze(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        lens = [9, 9, 9] if i < 3 else [9, 5, 7]; batches.append(([torch.randn(n, 4, generator=g) for n in lens], torch.randn(3, generator=g)))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="pad", phase="forward", op="aten.empty", first_bad_step=3))
