"""CONTROL: CTC with zero_infinity=True. Some transcripts are longer than their audio; the per-sample loss inside the kernel is Inf, but PyTorch
zeroes it and its gradient, as asked. The logged loss and all gradients are finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class ASR(nn.Module):
    def __init__(s): super().__init__(); s.rnn = nn.LSTM(6, 12, bidirectional=True); s.head = nn.Linear(24, 8); s.ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    def forward(s, x, y, nx, ny): return s.ctc(s.head(s.rnn(x)[0]).log_softmax(-1), y, nx, ny)

def build():
    torch.manual_seed(44); model = ASR(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(45); batches = []
    for i in range(10):
        nx = torch.tensor([14, 12, 9]); ny = torch.tensor([5, 4, 3])
        if i % 3 == 2: nx[2] = 4; ny[2] = 7                                      # a mis-cut segment
        batches.append((torch.randn(14, 3, 6, generator=g), torch.randint(1, 8, (3, 7), generator=g), nx, ny))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
