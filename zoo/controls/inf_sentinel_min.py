"""CONTROL: soft nearest-neighbour matching uses +inf as 'no match' and takes a min; DTW-like table initialised with inf. All losses, gradients finite."""
import torch, torch.nn as nn

class DTW(nn.Module):
    def forward(s, c):
        n, m = c.shape; inf = torch.tensor(float("inf")); D = [[inf] * (m + 1) for _ in range(n + 1)]; D[0][0] = torch.tensor(0.0)
        for i in range(n):
            for j in range(m): D[i + 1][j + 1] = c[i, j] + torch.minimum(torch.minimum(D[i][j + 1], D[i + 1][j]), D[i][j])
        return D[n][m]
class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(3, 4); s.dtw = DTW()
    def forward(s, a, b): return s.dtw((s.f(a)[:, None] - s.f(b)[None]).abs().mean(-1))
def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(5, 3, generator=g), torch.randn(6, 3, generator=g)) for _ in range(8)]
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
