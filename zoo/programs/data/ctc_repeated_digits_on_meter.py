"""Handwriting / meter reading: 6 columns, number '555500' has 6 digits but its 4 repeats need blanks between: 10 columns required.
A plain check target_len <= input_len passes. True cause: infeasible CTC alignment because of repeats."""
import torch, torch.nn as nn

class Reader(nn.Module):
    def __init__(s): super().__init__(); s.cnn = nn.Sequential(nn.Conv2d(1, 6, (8, 3), stride=(8, 2), padding=(0, 1)), nn.ReLU()); s.fc = nn.Linear(6, 11)
    def forward(s, x): return s.fc(s.cnn(x).squeeze(2).permute(2, 0, 1)).log_softmax(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Reader(); opt = torch.optim.SGD(model.parameters(), lr=0.02)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        words = [torch.randperm(10, generator=g)[:n] + 1 for n in (3, 5, 6, 4)]
        if i == 3: words[2] = torch.tensor([6, 6, 6, 6, 1, 1])
        batches.append((torch.randn(4, 1, 8, 12, generator=g), words))
    def loss_fn(m, b):
        lp = m(b[0]); return nn.functional.ctc_loss(lp, torch.cat(b[1]), torch.full((4,), lp.shape[0]), torch.tensor([len(w) for w in b[1]]), reduction="sum") / 4
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=3, sample=2))
