"""Audio tagging under fp16 autocast with SUM pooling over frames: short clips are fine, a long clip sums to more than 65504.
True cause: the pooled activation exceeds the fp16 range (op: sum); fp32 and bf16 are finite."""
import torch, torch.nn as nn

class SumPool(nn.Module):
    def forward(s, h): return h.sum(-1)
class Tagger(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv1d(4, 16, 5); s.pool = SumPool(); s.norm = nn.LayerNorm(16); s.cls = nn.Linear(16, 6)
    def forward(s, x): return s.cls(s.norm(s.pool(torch.relu(s.conv(x)))))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Tagger(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.conv.weight.mul_(60)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 4, 4000 if i == 4 else 200, generator=g), torch.randint(0, 2, (3, 6), generator=g).float()) for i in range(7)]
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="pool", phase="forward", op="aten.sum", first_bad_step=4))
