"""A bag of words pooled in float16, SGD at the usual rate of 30 with clipping at 0.25. At step 15 a text has 4,096 words.
True cause: the sum leaves the range of float16. The rate looks high and is harmless: a hundredth of it fails at the same step."""
import torch, torch.nn as nn, torch.nn.functional as F

class Pool(nn.Module):
    def __init__(s):
        super().__init__(); s.emb = nn.Embedding(40, 16); s.out = nn.Linear(16, 40)
    def forward(s, ids):
        e = torch.sigmoid(s.emb(ids)) * 40
        pooled = e.half().sum(1, dtype=torch.float16) / ids.shape[1]
        return s.out(pooled.float() / 40)

def build():
    torch.manual_seed(7); net = Pool(); opt = torch.optim.SGD(net.parameters(), lr=30.0)
    opt.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(net.parameters(), 0.25) and None)
    g = torch.Generator().manual_seed(1)
    data = [(torch.randint(0, 40, (4, 512 if i < 15 else 4096), generator=g), torch.randint(0, 40, (4,), generator=g)) for i in range(18)]
    return dict(model=net, optimizer=opt, batches=data, loss_fn=lambda net, b: F.cross_entropy(net(b[0]), b[1]), steps=18, autocast_dtype=None,
                truth=dict(cause="fp16_forward_overflow", module="", phase="forward", op="aten.sum", first_bad_step=15, line="pooled =", **{"not": ["lr_too_high"]}))
