"""ViT on satellite tiles: one tile carries the raster's nodata value -3.4e38, and the usual (x - mean) / std of the channels overflows.
True cause: a value of another scale in the batch (the sentinel), finite until it is normalised."""
import torch, torch.nn as nn
from transformers import ViTConfig, ViTForImageClassification

MEAN, STD = torch.tensor([0.5, 0.4, 0.3, 0.2]).view(1, 4, 1, 1), torch.tensor([0.2, 0.2, 0.2, 0.1]).view(1, 4, 1, 1)

def build():
    torch.manual_seed(0)
    cfg = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8, num_channels=4, num_labels=5)
    model = ViTForImageClassification(cfg); opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        x = torch.rand(3, 4, 16, 16, generator=g)
        if i == 3: x[1, 2, :4, :4] = -3.4028e38
        batches.append({"pixel_values": x, "labels": torch.randint(0, 5, (3,), generator=g)})
    def loss_fn(m, b):
        x = (b["pixel_values"] - MEAN) / STD
        return m(pixel_values=x, labels=b["labels"]).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", also=["bad_input_data"], module="loss", phase="forward", op="aten.div", first_bad_step=3))
