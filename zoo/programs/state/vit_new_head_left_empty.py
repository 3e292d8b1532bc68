"""ViT built on the meta device, materialised with to_empty, then a backbone checkpoint loaded with strict=False: the new classifier has no key in it.
True cause: uninitialised memory in classifier.* (made deterministic with torch's fill_uninitialized_memory mode while building)."""
import torch
from transformers import ViTConfig, ViTForImageClassification

def build():
    torch.manual_seed(0)
    cfg = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4, num_labels=3, hidden_dropout_prob=0., attention_probs_dropout_prob=0.)
    donor = {k: v for k, v in ViTForImageClassification(cfg).state_dict().items() if not k.startswith("classifier")}
    with torch.device("meta"): model = ViTForImageClassification(cfg)
    prev = torch.are_deterministic_algorithms_enabled(); torch.use_deterministic_algorithms(True)
    try: model = model.to_empty(device="cpu")
    finally: torch.use_deterministic_algorithms(prev)
    model.load_state_dict(donor, strict=False); model.train()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [dict(pixel_values=torch.randn(4, 3, 8, 8, generator=g), labels=torch.randint(0, 3, (4,), generator=g)) for _ in range(2)]
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=1, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", also=["corrupt_checkpoint"], module="classifier", phase="forward", also_phase=["state"], op="aten.empty", also_op=["aten.addmm"], first_bad_step=0,
                           state="classifier.weight", note="parameter is non-finite BEFORE step 0"))
