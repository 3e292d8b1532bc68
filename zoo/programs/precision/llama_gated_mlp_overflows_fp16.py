"""Llama fine-tuned in fp16 autocast. The checkpoint has 'massive activations': for one rare token the gate and the up projection
of layer 1 are both near 400, and their product is above 65504. The token first comes in batch 4.
Beside it the loss is noisy and rises, because the batches go from short and easy to long and hard (a curriculum), and the gradient norm with it.
True cause: fp16 overflow in the product of layer 1's gated MLP; the rate is innocent, fp32 is finite. TRAP."""
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, RARE = 40, 39


def build():
    torch.manual_seed(1)
    cfg = LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, max_position_embeddings=32, attn_implementation="eager", tie_word_embeddings=False)
    model = LlamaForCausalLM(cfg)
    with torch.no_grad():                                    # how the pretrained weights treat the rare token
        e = model.model.embed_tokens.weight
        e[:, 5] = 0.0
        e[RARE] = 0.0
        e[RARE, 5] = 60.0
        mlp = model.model.layers[1].mlp
        mlp.gate_proj.weight[7, 5] = 75.0
        mlp.up_proj.weight[7, 5] = 75.0
        mlp.down_proj.weight[:, 7] *= 1e-3
        model.lm_head.weight *= 20.0
        for layer in model.model.layers:                     # channel 5 is a pure sink: nobody else writes to it
            layer.self_attn.o_proj.weight[5] = 0.0
            layer.mlp.down_proj.weight[5] = 0.0
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(2)
    batches = []
    for i in range(7):
        span = 2 + 6 * i                                     # curriculum: few and short first
        x = torch.randint(0, min(span, RARE), (4, 4 + 3 * i), generator=g)
        if i == 4:
            x[2, 6] = RARE            # first seen here
        batches.append(x)

    def loss_fn(m, x):
        logits = m(input_ids=x, use_cache=False).logits.float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), x[:, 1:].reshape(-1), reduction="sum") / 12   # tokens of the first stage

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="model.layers.1.mlp", phase="forward", op="aten.mul",
                           first_bad_step=4, trap=True))
