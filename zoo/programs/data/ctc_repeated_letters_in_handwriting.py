"""Handwriting: 6 columns for the word 'llamaa' seem enough, but equal neighbours need a blank between them: 6 + 2 > 6. The loss
lives in a submodule (nn.CTCLoss) of the model.
True cause: CTC alignment infeasible because of the repeats, though the target is not longer than the input."""
import torch, torch.nn as nn

class OCR(nn.Module):
    def __init__(s):
        super().__init__(); s.rnn = nn.GRU(4, 10, bidirectional=True); s.out = nn.Linear(20, 6); s.criterion = nn.CTCLoss(reduction="sum")
    def forward(s, x, y, ny):
        lp = s.out(s.rnn(x)[0]).log_softmax(-1)
        return s.criterion(lp, y, torch.full((x.shape[1],), x.shape[0], dtype=torch.long), ny)

def build():
    torch.manual_seed(0); model = OCR(); opt = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(1); words = [[1, 2, 3, 4], [5, 1, 2, 1, 3], [3, 3, 1, 4, 1, 1], [2, 4, 2]]
    batches = []
    for w in words:
        y = torch.tensor([w + [0] * (6 - len(w)), [1, 2, 1, 0, 0, 0]])
        batches.append({"x": torch.randn(6, 2, 4, generator=g), "y": y, "ny": torch.tensor([len(w), 3])})
    def loss_fn(m, b): return m(**b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="criterion", phase="forward", op="aten._ctc_loss", first_bad_step=2))
