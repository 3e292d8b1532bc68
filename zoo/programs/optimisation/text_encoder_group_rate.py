"""Two parameter groups; the text encoder gets a rate a hundred times that of the image network, the other group is fine.
After https://github.com/kohya-ss/sd-scripts/issues/201 (unet_lr 5e-5, text_encoder_lr 5e-3: loss=nan).
True cause: the learning rate of one parameter group is too high."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class TextEncoder(nn.Module):
    def __init__(self, vocab=40, d=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.proj = nn.Linear(d, d)

    def forward(self, ids):
        return self.proj(F.silu(self.emb(ids))).mean(1)


class Denoiser(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.inp, self.gate, self.out = nn.Linear(8, d), nn.Linear(d, d), nn.Linear(d, 8)

    def forward(self, x, cond):
        h = self.inp(x)
        return self.out(h * self.gate(cond) * cond)


def build():
    torch.manual_seed(7)
    model = nn.ModuleDict({"text_encoder": TextEncoder(), "unet": Denoiser()})
    args = {"unet_lr": 5e-3, "text_encoder_lr": 5.0}
    groups = [{"params": model[k].parameters(), "lr": args[f"{k}_lr"]} for k in ("unet", "text_encoder")]
    opt = torch.optim.SGD(groups, momentum=0.9)
    g = torch.Generator().manual_seed(8)
    batches = [dict(latents=torch.randn(8, 8, generator=g), noise=torch.randn(8, 8, generator=g), ids=torch.randint(0, 40, (8, 6), generator=g)) for _ in range(5)]

    def loss_fn(m, b):
        cond = m["text_encoder"](b["ids"])
        pred = m["unet"](b["latents"] + b["noise"], cond)
        err = pred - b["noise"]
        return (err * err).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=40, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mul", first_bad_step=28, line="return (err * err).mean()"))
