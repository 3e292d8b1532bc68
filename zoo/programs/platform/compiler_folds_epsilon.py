"""torch.compile with a backend whose graph pass folds "x + tiny constant" to x: the normaliser's epsilon disappears, a constant
channel gives 0/0. Eager on the same inputs is finite. True cause: miscompilation."""
import operator, torch, torch.nn as nn

def buggy_backend(gm, example_inputs):
    for n in list(gm.graph.nodes):                                   # "algebraic simplification"
        if n.op == "call_function" and n.target in (operator.add, torch.add) and isinstance(n.args[1], float) and abs(n.args[1]) < 1e-3:
            n.replace_all_uses_with(n.args[0]); gm.graph.erase_node(n)
    gm.recompile(); return gm.forward

class ChannelNorm(nn.Module):
    def forward(s, x): return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.norm = ChannelNorm(); s.inp = nn.Linear(6, 12); s.out = nn.Linear(12, 2)
    def forward(s, x): return s.out(torch.relu(s.inp(s.norm(x))))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch._dynamo.reset(); model.norm.compile(backend=buggy_backend)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(5, 6, generator=g), torch.randint(0, 2, (5,), generator=g)) for _ in range(6)]
    batches[3][0][2] = 0.5
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="compiler_bug", module="norm", phase="forward", op="aten.div", first_bad_step=3))
