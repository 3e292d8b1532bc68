"""A speech enhancer multiplies by a ReLU gate; once it closes the gate for a whole frame, its spectrum is exactly 0 and the log-spectral distance is infinite.
True cause: log10 of zero in the loss; a floor under the power makes it finite."""
import torch, torch.nn as nn

class Enhancer(nn.Module):
    def __init__(s): super().__init__(); s.gate = nn.Linear(16, 1); nn.init.constant_(s.gate.bias, 2.0)
    def forward(s, frame): return frame * s.gate(frame).relu()

def build():
    torch.manual_seed(0); model = Enhancer(); opt = torch.optim.Adamax(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 16, generator=g), torch.randn(5, 16, generator=g)) for _ in range(5)]
    batches[3][0][2] = -6.0 * model.gate.weight[0].detach().sign()                # a frame of noise: the gate closes
    def loss_fn(m, b):
        est, ref = (torch.fft.rfft(v).abs().square() for v in (m(b[0]), b[1]))
        return (est.log10() - ref.log10()).abs().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log10", first_bad_step=3, grads_finite=True))
