"""Phase-only hologram: field / |field|. A dark pixel (aperture stop) is exactly 0+0j, so 0/0. The log-intensity picture beside it
has zeros too but carries its floor (innocent)."""
import torch, torch.nn as nn

class PhaseOnly(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, u): return u / (u.abs() + (1e-6 if s.fix == "true" else 0.0))
class Net(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.phase = nn.Parameter(0.1 * torch.randn(8, 8)); s.po = PhaseOnly(fix)
    def forward(s, amp):
        u = amp * torch.exp(1j * s.phase); far = torch.fft.fft2(s.po(u)); return u, far

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(8, 8, generator=g) + 0.2, torch.rand(8, 8, generator=g) * 8) for _ in range(6)]
    batches[3][0][:2, :2] = 0.0                                        # the stop
    def loss_fn(m, b):
        u, far = m(b[0]); floor = 1e-2 if fix == "innocent" else 1e-9
        logi = torch.log((u * u.conj()).real + floor)
        return (far.abs() - b[1]).pow(2).mean() + 1e-3 * logi.pow(2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="po", phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="complex 0 divided by its modulus 0; the log has a floor"))
