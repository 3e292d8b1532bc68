"""Between two steps the exponent bits of one entry of a frozen word table flip in memory: no optimizer owns it, nothing wrote it, and the next forward reads Inf or NaN.
True cause: a hardware fault in the memory of words.weight (played by the loader, past PyTorch's version counter)."""
import numpy as np, torch, torch.nn as nn

class Tagger(nn.Module):
    def __init__(s):
        super().__init__(); s.words = nn.Embedding(10, 6); s.words.weight.requires_grad_(False); s.rnn = nn.GRU(6, 8, batch_first=True); s.out = nn.Linear(8, 3)
    def forward(s, ids): return s.out(s.rnn(s.words(ids))[0])

def build():
    torch.manual_seed(0); model = Tagger(); opt = torch.optim.Adamax([p for p in model.parameters() if p.requires_grad], lr=1e-3); g = torch.Generator().manual_seed(1)
    data = [(torch.randint(0, 10, (4, 7), generator=g), torch.randint(0, 3, (4, 7), generator=g)) for _ in range(6)]
    def stream():
        for i, batch in enumerate(data):
            if i == 4: model.words.weight.detach().numpy().view(np.int32)[int(batch[0][1, 2]), 3] |= 0x7F800000
            yield batch
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).transpose(1, 2), b[1])
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="hardware_fault", module="words", phase="state", op="aten.embedding", first_bad_step=4, state="words.weight"))
