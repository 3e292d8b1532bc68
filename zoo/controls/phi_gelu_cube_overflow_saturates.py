"""CONTROL: Phi under fp16 autocast. gelu_new computes x^3, which is Inf in half for one token's hidden unit (about 90). tanh(Inf) is 1, the
output is right, and in the backward 3 x^2 still fits: loss, gradients and weights stay finite. The Inf lives for three operations."""
import torch
import torch.nn.functional as F
from transformers import PhiConfig, PhiForCausalLM

VOCAB, TOKEN = 32, 31


def build():
    torch.manual_seed(0)
    cfg = PhiConfig(vocab_size=VOCAB, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                    max_position_embeddings=32, hidden_act="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0,
                    bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    model = PhiForCausalLM(cfg)
    with torch.no_grad():
        e = model.model.embed_tokens.weight
        e[:, 7] = 0.0
        e[TOKEN, 7] = 3.0
        for layer in model.model.layers:
            layer.self_attn.dense.weight[7] = 0.0
            layer.mlp.fc2.weight[7] = 0.0
        fc = model.model.layers[1].mlp.fc1
        fc.weight[11] = 0.0
        fc.weight[11, 7] = 20.0                    # layer norm gives about 4.7 for this token, about 0 for all others
        model.model.layers[1].mlp.fc2.weight[:, 11] *= 0.05
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        x = torch.randint(1, TOKEN, (3, 9), generator=g)
        if i == 3:
            x[1, 4] = TOKEN
        batches.append(x)

    def loss_fn(m, x):
        logits = m(input_ids=x, use_cache=False).logits.float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), x[:, 1:].reshape(-1))

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
