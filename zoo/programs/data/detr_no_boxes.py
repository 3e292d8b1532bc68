"""DETR-like set loss normalised by the number of boxes: batch 3 holds only background images, num_boxes == 0, so the box term is 0/0. (A buffer of the
model, map_per_class, is NaN by design until the first evaluation, and is never read.)"""
import torch, torch.nn as nn, torch.nn.functional as F
class MiniDETR(nn.Module):
    def __init__(self, nq=5, d=16, ncls=3):
        super().__init__(); self.backbone = nn.Conv2d(3, d, 4, stride=4); self.query_embed = nn.Embedding(nq, d)
        self.decoder = nn.TransformerDecoderLayer(d, 2, 32, dropout=0.0, batch_first=True); self.class_embed = nn.Linear(d, ncls + 1); self.bbox_embed = nn.Linear(d, 4)
        self.register_buffer("map_per_class", torch.full((ncls,), float("nan")))      # NaN by design until the first evaluation
    def forward(self, img):
        mem = self.backbone(img).flatten(2).transpose(1, 2); hs = self.decoder(self.query_embed.weight[None].expand(len(img), -1, -1), mem)
        return {"pred_logits": self.class_embed(hs), "pred_boxes": self.bbox_embed(hs).sigmoid()}
def build():
    torch.manual_seed(0); model = MiniDETR(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(0); bs = []
    for i in range(6):
        tg = [{"labels": torch.randint(0, 3, (n,), generator=g), "boxes": torch.rand(n, 4, generator=g)} for n in ([0, 0] if i == 3 else [2, 0])]
        bs.append({"images": torch.randn(2, 3, 8, 8, generator=g), "targets": tg})
    def loss_fn(m, b):
        o = m(b["images"]); num_boxes = torch.as_tensor(float(sum(len(t["labels"]) for t in b["targets"])))
        cls = torch.full(o["pred_logits"].shape[:2], 3); l1 = o["pred_boxes"].new_zeros(())
        for k, t in enumerate(b["targets"]):
            n = len(t["labels"]); cls[k, :n] = t["labels"]; l1 = l1 + (o["pred_boxes"][k, :n] - t["boxes"]).abs().sum()
        losses = {"loss_ce": F.cross_entropy(o["pred_logits"].transpose(1, 2), cls), "loss_bbox": l1 / num_boxes}
        return losses["loss_ce"] + 5 * losses["loss_bbox"]
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=False, grads_finite=True, non_finite_by_design=["map_per_class"],
                           also=["division_by_zero"], why="The box loss is averaged over zero boxes."))
