"""Mixtral as an audio language model: cached audio features are put before the tokens. The `gps` field of each batch is NaN for everybody (unknown) and is never used.
True cause: one cached feature vector of batch 4 is NaN (audio[1]); the NaN in `gps`, there from batch 0 on, is innocent."""
import torch, torch.nn as nn
from transformers import MixtralConfig, MixtralForCausalLM

class AudioLM(nn.Module):
    def __init__(s):
        super().__init__(); s.adapter = nn.Linear(5, 16)
        s.lm = MixtralForCausalLM(MixtralConfig(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, num_local_experts=4,
                                                num_experts_per_tok=2, max_position_embeddings=32))
    def forward(s, audio, ids):
        e = torch.cat([s.adapter(audio), s.lm.get_input_embeddings()(ids)], 1)
        return s.lm(inputs_embeds=e, use_cache=False).logits[:, audio.shape[1]:]

def build():
    torch.manual_seed(0); model = AudioLM(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(audio=torch.randn(3, 4, 5, generator=g), ids=torch.randint(0, 24, (3, 6), generator=g), gps=torch.full((3, 2), float("nan"))) for _ in range(7)]
    batches[4]["audio"][1, 2] = float("nan")
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b["audio"], b["ids"])[:, :-1].flatten(0, 1), b["ids"][:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=4, bad_path="audio[1]"))
