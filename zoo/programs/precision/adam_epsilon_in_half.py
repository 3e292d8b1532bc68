"""A model in pure float16 is trained with Adam; eps 1e-8 is 0 there, and rows of the embedding without a gradient give 0 / 0.
After https://github.com/kscalelabs/minppo/pull/19 (use 1e-5 for eps when training fp16 models).
True cause: Adam's epsilon is zero in the dtype of its state."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0)
    m = nn.ModuleDict(dict(emb=nn.Embedding(20, 8), out=nn.Linear(8, 4))).half()
    opt = torch.optim.Adam(m.parameters(), lr=1e-3, eps=1e-8)
    g = torch.Generator().manual_seed(3)
    batches = [dict(ids=torch.randint(0, 10, (6, 5), generator=g), y=torch.randint(0, 4, (6,), generator=g)) for _ in range(3)]
    def loss_fn(m, b):
        h = m["emb"](b["ids"]).mean(1)
        return nn.functional.cross_entropy(m["out"](h).float(), b["y"])
    return dict(model=m, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=0, loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["emb.weight"], line="eps=1e-8"))
