"""Preempted in the middle: after step 3 the job reloads optimizer state that went through a lossy 8-bit codec; one Adagrad sum is negative.
True cause: corrupt optimizer state; sqrt(negative) = NaN in the update of the embedding, gradients are finite."""
import copy, torch, torch.nn as nn

class MF(nn.Module):
    def __init__(s): super().__init__(); s.user = nn.Embedding(15, 6); s.item = nn.Embedding(12, 6); s.bias = nn.Linear(6, 1)
    def forward(s, u, i): e = s.user(u) * s.item(i); return s.bias(e).squeeze(-1) + e.sum(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = MF(); opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1); batches = [(torch.randint(0, 15, (20,), generator=g), torch.randint(0, 12, (20,), generator=g), torch.rand(20, generator=g) * 4 + 1) for _ in range(8)]
    done = dict(n=0)
    def preempt(o, *a):
        done["n"] += 1
        if done["n"] == 4:
            sd = copy.deepcopy(o.state_dict()); sd["state"][1]["sum"][7, 2] = -40.0; o.load_state_dict(sd)
    opt.register_step_post_hook(preempt)
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.sqrt", first_bad_step=4,
                           loss_finite_at_first_bad_step=True, param="item.weight"))
