"""On start the script multiplies the rate by the world size, 64; on resume it loads the optimizer, whose rate is scaled already, and multiplies once more.
True cause: the rate jumps from 0.064 to 4.1 at the resume after batch 5; with the rate before it the run is stable."""
import copy, torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(12, 8); s.up = nn.Linear(8, 16); s.out = nn.Linear(16, 3)
    def forward(s, ids): return s.out(nn.functional.mish(s.up(s.emb(ids).mean(1))))

def build():
    torch.manual_seed(0); model = Net(); world = 64; opt = torch.optim.SGD(model.parameters(), lr=0.001 * world, momentum=0.5, nesterov=True)
    g = torch.Generator().manual_seed(1); data = [dict(ids=torch.randint(0, 12, (8, 4), generator=g), y=torch.randn(8, 3, generator=g)) for _ in range(16)]
    def stream():
        for i, batch in enumerate(data):
            if i == 6:
                opt.load_state_dict(copy.deepcopy(opt.state_dict()))              # resume
                for group in opt.param_groups: group["lr"] *= world
            yield batch
    def loss_fn(m, b): return (m(b["ids"]) - b["y"]).pow(2).sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=11, autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", module="out", phase="forward", op="aten.addmm", first_bad_step=9))
