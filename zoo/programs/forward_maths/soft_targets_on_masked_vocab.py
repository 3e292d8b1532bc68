"""Distillation into a language model whose padded vocabulary columns are set to -inf: the teacher gives them probability 0, and the
soft-target cross entropy multiplies 0 * -inf. True cause: soft targets on -inf logits."""
import torch, torch.nn as nn

class LM(nn.Module):
    def __init__(s, V=20): super().__init__(); s.emb = nn.Embedding(V, 12); s.rnn = nn.GRU(12, 12, batch_first=True); s.out = nn.Linear(12, V)
    def forward(s, x): return s.out(s.rnn(s.emb(x))[0])

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = LM(); opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(1); pad_cols = torch.arange(20) >= 17; batches = []
    for i in range(7):
        x = torch.randint(0, 17, (3, 6), generator=g)
        batches.append({"ids": x, "teacher": torch.softmax(torch.randn(3, 6, 20, generator=g).masked_fill(pad_cols, -1e9), -1), "pad_vocab": i >= 3})
    def loss_fn(m, b):
        z = m(b["ids"])
        if b["pad_vocab"]: z = z.masked_fill(pad_cols, float("-inf"))   # switched on after the tokenizer was padded to a multiple of 4
        return -(b["teacher"] * z.log_softmax(-1)).sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", phase="forward", op="aten.mul", first_bad_step=3, grads_finite=True))
