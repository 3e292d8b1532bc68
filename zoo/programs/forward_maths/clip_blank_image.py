"""A small CLIP: the image tower has no biases, so an all-black image (a failed download that was saved as zeros) has the embedding
exactly 0, and x / x.norm() is 0/0.
True cause: division by a zero norm. Zero is a legal pixel value and the batch is finite."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ImageTower(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.body = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.proj = nn.Linear(16, d, bias=False)

    def forward(self, x):
        x = F.gelu(self.stem(x))
        x = F.gelu(self.body(x))
        return self.proj(x.mean((2, 3)))


class TextTower(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.emb = nn.Embedding(50, 16)
        self.rnn = nn.GRU(16, d, batch_first=True)

    def forward(self, ids):
        return self.rnn(self.emb(ids))[1][0]


class L2Normalise(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual, self.text = ImageTower(), TextTower()
        self.norm_image, self.norm_text = L2Normalise(), L2Normalise()
        self.logit_scale = nn.Parameter(torch.tensor(2.659))

    def forward(self, image, ids):
        i, t = self.norm_image(self.visual(image)), self.norm_text(self.text(ids))
        return self.logit_scale.exp() * i @ t.t()


def build():
    torch.manual_seed(0)
    model = Clip()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(11)
    batches = []
    for i in range(6):
        image = torch.rand(6, 3, 12, 12, generator=g)
        if i == 2:
            image[4] = 0.0
        batches.append({"image": image, "ids": torch.randint(0, 50, (6, 7), generator=g)})

    def loss_fn(m, b):
        logits = m(b["image"], b["ids"])
        target = torch.arange(len(logits))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="norm_image", phase="forward", op="aten.div", first_bad_step=2))
