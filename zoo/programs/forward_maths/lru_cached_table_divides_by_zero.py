"""A scale table is built once per key and kept in an lru_cache. Key 0 (first used in step 2) divides by zero inside the cached function;
every later call, and every replay, only meets the finished table with its inf."""
import functools, torch, torch.nn as nn

def build():
    @functools.lru_cache(maxsize=None)
    def table(level):
        width = torch.arange(level, level + 6, dtype=torch.float32)
        return 1.0 / width
    class Scale(nn.Module):
        def forward(s, x, level): return x * table(level)
    class Net(nn.Module):
        def __init__(s): super().__init__(); s.a = nn.Linear(4, 6); s.scale = Scale(); s.b = nn.Linear(6, 1)
        def forward(s, x, level): return s.b(s.scale(s.a(x), level))
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 4, generator=g), [3, 1, 0, 2, 1][i], torch.randn(5, 1, generator=g)) for i in range(5)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="scale", phase="forward", op="aten.reciprocal", also_op=["aten.div", "aten.mul"], first_bad_step=2,
                           **{"not": ["hardware_fault", "bad_input_data", "uninitialised_memory", "state_overwritten", "corrupt_checkpoint", "lr_too_high"]}))
