"""RLHF with a GPT-2 policy: the log-probabilities of one rollout were written by another policy, so exp(new - old) overflows; its advantage is 0.
Threads: OpenRLHF/OpenRLHF#1314, radixark/miles#1363, huggingface/trl#454.
True cause: exp of a large finite difference."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

def logprobs(m, ids): return m(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)

def build():
    torch.manual_seed(0)
    cfg = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(cfg); opt = torch.optim.Adam(model.parameters(), lr=1e-5)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        ids = torch.randint(0, 32, (3, 8), generator=g)
        with torch.no_grad(): old = logprobs(model, ids)
        if i == 4: old[2, 5] = -130.0
        batches.append(dict(ids=ids, old=old, adv=torch.tensor([0.8, -0.8, 0.0])))
    def loss_fn(m, b):
        ratio = torch.exp(logprobs(m, b["ids"]) - b["old"]); adv = b["adv"][:, None]
        return -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=4))
