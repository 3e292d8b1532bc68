"""ViT: at batch 3 the trainer rolls back to a 'best' checkpoint on disk, in which one bias is Inf (a half-written file). Loaded with load_state_dict; nothing else is wrong."""
import io, torch
from transformers import ViTConfig, ViTForImageClassification
def build():
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sd = {k: v.clone() for k, v in model.state_dict().items()}; sd["vit.layernorm.bias"][5] = float("inf")
    f = io.BytesIO(); torch.save(sd, f)
    def loader():
        g = torch.Generator().manual_seed(1)
        for i in range(6):
            if i == 3: f.seek(0); model.load_state_dict(torch.load(f))
            yield {"pixel_values": torch.randn(3, 3, 8, 8, generator=g), "labels": torch.randint(0, 3, (3,), generator=g)}
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=loader(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", module="vit.layernorm", phase="forward", op="aten.empty", first_bad_step=3, loss_finite_at_first_bad_step=False, state="vit.layernorm.bias",
                           op_note="op not scored (state fault)", also=["state_overwritten"], why="The bias is Inf right after load_state_dict, before the forward of step 3."))
