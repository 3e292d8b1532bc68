"""Resume of an SGD run: one shard of the saved momentum holds Inf (it was saved right after an overflow that the weights did not yet see).
True cause: corrupt optimizer state; loss and gradients are finite, a fresh momentum is finite."""
import copy, io, torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.stem = nn.Conv2d(1, 4, 3); s.body = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 16), nn.ReLU()); s.cls = nn.Linear(16, 3)
    def forward(s, x): return s.cls(s.body(s.stem(x)))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 1, 6, 6, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    for b in batches[:2]: opt.zero_grad(); loss_fn(model, b).backward(); opt.step()
    sd = copy.deepcopy(opt.state_dict()); sd["state"][2]["momentum_buffer"][5, 11] = float("inf")
    f = io.BytesIO(); torch.save(sd, f); f.seek(0); opt.load_state_dict(torch.load(f)); opt.zero_grad()
    return dict(model=model, optimizer=opt, batches=batches[2:], loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.add_", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, param="body.2.weight", op_alternatives=["aten.mul_"]))
