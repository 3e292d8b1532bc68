"""A DETR-like detector. Images of a batch are padded to one size and the decoder's cross-attention gets a key_padding_mask. One image of
batch 3 failed to decode and became 0 x 0: all its positions are padding, and nn.MultiheadAttention's softmax has only -inf.
True cause: fully masked attention row. The set loss does not even read that image (no objects)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoderLayer(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, 2, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(d, 2, batch_first=True)
        self.norm = nn.LayerNorm(d)

    def forward(self, q, memory, padding):
        q = q + self.self_attn(q, q, q)[0]
        return self.norm(q + self.cross_attn(q, memory, memory, key_padding_mask=padding)[0])


class Detr(nn.Module):
    def __init__(self, d=16, queries=4, classes=3):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, stride=4)
        self.queries = nn.Parameter(torch.randn(queries, d))
        self.decoder = nn.ModuleList([DecoderLayer(), DecoderLayer()])
        self.cls, self.box = nn.Linear(d, classes + 1), nn.Linear(d, 4)

    def forward(self, images, sizes):
        x = self.patch(images)
        h, w = x.shape[-2:]
        rows = torch.arange(h)[None, :, None] * 4 >= sizes[:, 0, None, None]
        cols = torch.arange(w)[None, None, :] * 4 >= sizes[:, 1, None, None]
        padding = (rows | cols).flatten(1)
        q = self.queries[None].expand(len(images), -1, -1)
        for layer in self.decoder:
            q = layer(q, x.flatten(2).transpose(1, 2), padding)
        return self.cls(q), self.box(q).sigmoid()


def build():
    torch.manual_seed(0)
    model = Detr()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        sizes = torch.tensor([[16, 16], [12, 16], [16, 8]])
        objects = torch.tensor([1, 1, 1])
        if i == 3:
            sizes[1], objects[1] = 0, 0
        batches.append({"images": torch.rand(3, 3, 16, 16, generator=g), "sizes": sizes, "objects": objects,
                        "labels": torch.randint(0, 3, (3, 4), generator=g), "boxes": torch.rand(3, 4, 4, generator=g)})

    def loss_fn(m, b):
        logits, boxes = m(b["images"], b["sizes"])
        has = b["objects"] > 0
        return F.cross_entropy(logits[has].flatten(0, 1), b["labels"][has].flatten()) + F.l1_loss(boxes[has], b["boxes"][has])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="decoder.0.cross_attn", phase="forward", op="aten._softmax",
                           first_bad_step=3, loss_finite_at_first_bad_step=True))
