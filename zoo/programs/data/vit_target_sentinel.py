"""ViT that regresses a physical quantity from patches. The data base writes 1e25 for 'no measurement'; one target of batch 3 has it,
and its squared error overflows float32.
True cause: one value far outside the scale of all the others; finite everywhere in the batch itself."""
import torch
import torch.nn as nn
from transformers import ViTConfig, ViTModel


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.vit = ViTModel(ViTConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16,
                                      patch_size=8, num_channels=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
                            add_pooling_layer=False)
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.vit(pixel_values=x).last_hidden_state[:, 0]).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = Regressor()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        image = torch.rand(6, 1, 16, 16, generator=g)
        density = 3.0 + torch.randn(6, generator=g)
        if i == 3:
            density[4] = 1e25
        batches.append({"image": image, "density": density})

    def loss_fn(m, b):
        return nn.functional.mse_loss(m(b["image"]), b["density"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=3,
                           grads_finite=True, also=dict(phase=["data"], cause=["bad_input_data"])))
