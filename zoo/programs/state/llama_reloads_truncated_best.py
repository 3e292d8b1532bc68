"""Llama fine-tuning with "reload the best checkpoint on a plateau": the file was cut while it was written, and one matrix in it holds NaN.
True cause: corrupt checkpoint loaded at step 4; the running model was healthy until then."""
import io, torch
from transformers import LlamaConfig, LlamaForCausalLM

def build():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32))
    best = {k: v.clone() for k, v in model.state_dict().items()}
    best["model.layers.1.mlp.up_proj.weight"][20:, 3:9] = float("nan")
    disk = io.BytesIO(); torch.save(best, disk)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(ids=torch.randint(0, 24, (2, 9), generator=g), plateau=i == 4) for i in range(7)]
    def restore(m): disk.seek(0); m.load_state_dict(torch.load(disk, weights_only=True))
    def loss_fn(m, b):
        if b["plateau"]: restore(m)
        return m(input_ids=b["ids"], labels=b["ids"]).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", also=["state_overwritten"], module="model.layers.1.mlp.up_proj", phase="forward", also_phase=["state"], op="aten.mm", also_op=["aten.copy_"], also_module=["loss"],
                           first_bad_step=4, state="model.layers.1.mlp.up_proj.weight"))
