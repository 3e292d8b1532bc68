"""Segmentation with a hand-written binary focal loss; one mask has a third class (2 = unlabelled border), so p_t = p*y + (1-p)*(1-y) is below 0.
True cause: the target is outside [0, 1]; the logarithm of a negative number is only where it shows."""
import torch, torch.nn as nn

class UNet(nn.Module):
    def __init__(s):
        super().__init__(); s.d1 = nn.Conv2d(1, 8, 3, padding=1); s.d2 = nn.Conv2d(8, 8, 3, stride=2, padding=1); s.up = nn.ConvTranspose2d(8, 8, 2, stride=2); s.out = nn.Conv2d(16, 1, 1)
        nn.init.constant_(s.out.bias, -2.0)                       # rare foreground prior
    def forward(s, x):
        a = torch.relu(s.d1(x)); b = torch.relu(s.up(torch.relu(s.d2(a)))); return s.out(torch.cat([a, b], 1)) * 0.5

def focal(logit, y, gamma=2.0):
    p = torch.sigmoid(logit); pt = p * y + (1 - p) * (1 - y)
    return -((1 - pt) ** gamma * torch.log(pt)).mean()

def build():
    torch.manual_seed(0); model = UNet(); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.out.weight.mul_(0.1)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.randn(2, 1, 8, 8, generator=g); y = (x > 0.5).float()
        if i == 3: y[1, 0, 0] = 2.0
        batches.append((x, y))
    def loss_fn(m, b): return focal(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="loss", phase="forward", op="aten.log", first_bad_step=3))
