"""Mean-teacher with a Polyak average kept as a running SUM of weights in fp16 (teacher = sum / count), resumed after 651 updates. The cosine
classifier's logit scale of about 100 brings its sum past 65504: the average becomes Inf while the student stays sound. The consistency
loss meets it one step later.
True cause: the averaged copy is poisoned, by its own update after the optimizer step."""  # measure only: not to be read while rules are changed
import copy, torch, torch.nn as nn

class Cosine(nn.Module):
    def __init__(s): super().__init__(); s.proto = nn.Parameter(torch.randn(3, 12)); s.scale = nn.Parameter(torch.tensor(100.0))
    def forward(s, h): return s.scale * nn.functional.normalize(h, dim=-1) @ nn.functional.normalize(s.proto, dim=-1).t()
class MeanTeacher(nn.Module):
    def __init__(s):
        super().__init__(); s.student = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), Cosine()); s.count = 0
        s.total = copy.deepcopy(s.student).half().requires_grad_(False)
    @torch.no_grad()
    def average(s):
        s.count += 1
        for t, p in zip(s.total.parameters(), s.student.parameters()): t.add_(p)
    def forward(s, x):
        avg = {k: (v.float() / max(s.count, 1)) for k, v in s.total.named_parameters()}
        with torch.no_grad(): y = torch.func.functional_call(s.total, avg, (x,))
        return s.student(x), y

def build():
    torch.manual_seed(30); model = MeanTeacher(); opt = torch.optim.SGD(model.student.parameters(), lr=1e-4); g = torch.Generator().manual_seed(34)
    with torch.no_grad():                                                      # the averaged run so far: 651 updates
        for t, p in zip(model.total.parameters(), model.student.parameters()): t.copy_(p * 651)
    model.count = 651; opt.register_step_post_hook(lambda o, *a: model.average())
    batches = [(torch.randn(12, 6, generator=g), torch.randint(0, 3, (12,), generator=g)) for _ in range(8)]
    def loss_fn(m, b): s, t = m(b[0]); return nn.functional.cross_entropy(s, b[1]) + nn.functional.mse_loss(s.softmax(-1), t.softmax(-1))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="optimizer", phase="optimizer", op="aten.add_", first_bad_step=4,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["total.2.scale"]))
