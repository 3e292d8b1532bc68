"""BLOOM fine-tuned in fp16 autocast. For one delimiter token the query and key of layer 0 are both about 700 (an attention sink learned in
bfloat16): the score of the token with itself is about 150,000 and baddbmm overflows in half. The token first comes at step 2.
True cause: fp16 overflow in the attention scores of layer 0; with fp32 (or bfloat16) the step is finite. Mask and alibi are fine."""
import torch
import torch.nn.functional as F
from transformers import BloomConfig, BloomForCausalLM

VOCAB, SINK = 30, 29


def build():
    torch.manual_seed(0)
    cfg = BloomConfig(vocab_size=VOCAB, hidden_size=24, n_layer=2, n_head=2, hidden_dropout=0.0, attention_dropout=0.0, bos_token_id=1, eos_token_id=2)
    model = BloomForCausalLM(cfg)
    with torch.no_grad():
        e = model.transformer.word_embeddings.weight
        e[:, 3] = 0.0
        e[SINK] = 0.0
        e[SINK, 3] = 1.0
        qkv = model.transformer.h[0].self_attention.query_key_value
        w = qkv.weight.view(2, 3, 12, 24)                          # head, q/k/v, dim, hidden
        w[0, 0, 5, 3] = 150.0
        w[0, 1, 5, 3] = 150.0
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        x = torch.randint(3, SINK, (3, 8), generator=g)
        if i == 2:
            x[0, 5] = SINK
        batches.append(x)

    def loss_fn(m, x):
        logits = m(input_ids=x, use_cache=False).logits.float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), x[:, 1:].reshape(-1))

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="transformer.h.0.self_attention", phase="forward", op="aten.baddbmm",
                           first_bad_step=2))
