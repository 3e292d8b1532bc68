"""nn.MultiheadAttention: in batch 2 a sample is wholly padded; its NaN output is dropped with where from the loss, and comes back in backward. Causal -inf float mask is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.att = nn.MultiheadAttention(8, 2, batch_first=True); s.fc = nn.Linear(8, 1); s.fix = fix
    def forward(s, x, pad):
        T = x.shape[1]; cm = None if s.fix == "innocent" else torch.full((T, T), float("-inf")).triu(1)
        kp = torch.zeros(pad.shape).masked_fill(pad, float("-inf"))
        if s.fix == "true": kp = kp.masked_fill(pad.all(1, keepdim=True), 0.0)
        h, _ = s.att(x, x, x, attn_mask=cm, key_padding_mask=kp, need_weights=True)
        return torch.where(pad, 0.0, s.fc(h).squeeze(-1))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        pad = torch.zeros(3, 5, dtype=torch.bool); pad[0, 3:] = True
        if i == 2: pad[1] = True
        batches.append((torch.randn(3, 5, 8, generator=g), pad, torch.randn(3, 5, generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: ((m(b[0], b[1]) - b[2]) ** 2).mean(), steps=5, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="att", phase="forward", op="aten._softmax", first_bad_step=2, sample=1,
                           loss_finite_at_first_bad_step=True, also=["where_unselected_branch"], why="all keys of sample 1 are -inf; the NaN is erased in the loss only"))
