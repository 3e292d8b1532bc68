"""A language model casts its logits to half "to save memory" and sums the token losses over a long batch in the same type.
True cause: cross-entropy reduced in fp16: about 33000 tokens of loss 3 are more than 65504. A mean, or fp32, is fine."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 20, (n, 256), generator=g) for n in (4, 8, 128, 8)]        # batch-size warm-up
    def loss_fn(m, b):
        logits = m(b[:, :-1]).half()
        return nn.functional.cross_entropy(logits.flatten(0, 1), b[:, 1:].flatten(), reduction="sum")
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", module="loss", phase="forward", op="aten.nll_loss_forward", first_bad_step=2, grads_finite=True))
