"""ViT that pools the patches that are not padding; one image of a batch is all padding."""
import torch, torch.nn as nn, torch.nn.functional as F

class MaskedPool(nn.Module):
    def forward(s, x, keep):
        total = (x * keep.unsqueeze(-1)).sum(1)
        return total / keep.sum(1, keepdim=True)
class ViT(nn.Module):
    def __init__(s): super().__init__(); s.patch = nn.Linear(12, 16); s.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0); s.pool = MaskedPool(); s.head = nn.Linear(16, 3)
    def forward(s, patches, keep): return s.head(s.pool(s.block(s.patch(patches)), keep))
def build():
    torch.manual_seed(0); model = ViT(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(patches=torch.randn(3, 6, 12, generator=g), keep=torch.ones(3, 6), label=torch.randint(0, 3, (3,), generator=g)) for _ in range(3)]
    batches[1]["keep"][2] = 0
    def loss_fn(m, b): return F.cross_entropy(m(b["patches"], b["keep"]), b["label"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="pool", phase="forward", op="aten.div", first_bad_step=1, line="total / keep.sum"))
