"""Text-to-speech duration predictor: durations in frames are mapped to the unconstrained space by log(expm1(d)). A pause of 104 frames
(quite ordinary) overflows expm1 in fp32.
True cause: exp overflow in the inverse softplus of a large finite value (d + log(-expm1(-d)) would be right)."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class InvSoftplus(nn.Module):
    def forward(s, d): return torch.log(torch.expm1(d))
class Duration(nn.Module):
    def __init__(s):
        super().__init__(); s.emb = nn.Embedding(40, 16); s.conv = nn.Conv1d(16, 16, 3, padding=1); s.out = nn.Linear(16, 1); s.unconstrain = InvSoftplus()
    def forward(s, ph, dur):
        h = torch.relu(s.conv(s.emb(ph).transpose(1, 2))).transpose(1, 2)
        return s.out(h).squeeze(-1) - s.unconstrain(dur)

def build():
    torch.manual_seed(7); model = Duration(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(11); batches = []
    for i in range(8):
        dur = torch.randint(2, 40, (4, 11), generator=g).float()
        if i == 5: dur[0, 10] = 104.0
        batches.append(dict(phones=torch.randint(0, 40, (4, 11), generator=g), dur=dur))
    def loss_fn(m, b): return nn.functional.huber_loss(r := m(b["phones"], b["dur"]), torch.zeros_like(r), delta=3.0)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="unconstrain", phase="forward", op="aten.expm1", first_bad_step=5, grads_finite=True))
