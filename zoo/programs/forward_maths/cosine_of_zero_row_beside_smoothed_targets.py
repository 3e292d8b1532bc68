"""Binary targets smoothed to [-0.02, 1.02] train well. What fails is a cosine regulariser on a batch whose embedding row is all zeros.
True cause: division by zero. Clean targets fail at the same step."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(6, 8, bias=False); s.head = nn.Linear(8, 1)
    def forward(s, x): z = torch.relu(s.enc(x)); return s.head(z).squeeze(-1), z
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randint(0, 2, (8,), generator=g) * 1.04 - 0.02) for _ in range(6)]
    batches[4][0][2] = 0.0
    def loss_fn(m, b):
        logit, z = m(b[0]); unit = z / z.square().sum(-1, keepdim=True).sqrt()
        return nn.functional.binary_cross_entropy_with_logits(logit, b[1]) + 0.01 * (unit @ unit.T).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=4, never_said=["targets lie in"]))
