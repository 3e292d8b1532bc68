"""Two kinds of batches in turn: text and speech. In the second speech batch (step 3) one target of 5 labels in 6 frames SEEMS to fit, but has three repeats,
which need blanks between them: 8 frames. The labels are in range and the log-probabilities finite."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(4, 8); s.text = nn.Linear(8, 5); s.speech = nn.Linear(8, 5)
    def forward(s, x, kind): h = torch.tanh(s.enc(x)); return (s.text if kind == "text" else s.speech)(h)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        if i % 2 == 0: batches.append(dict(kind="text", x=torch.randn(6, 3, 4, generator=g), y=torch.randint(0, 5, (6, 3), generator=g)))
        else:
            y = torch.tensor([[1, 2, 3, 4, 1], [2, 3, 2, 3, 2], [4, 1, 2, 1, 3]])
            if i == 3: y[1] = torch.tensor([2, 2, 3, 3, 3])
            batches.append(dict(kind="speech", x=torch.randn(6, 3, 4, generator=g), y=y))
    def loss_fn(m, b):
        o = m(b["x"], b["kind"])
        if b["kind"] == "text": return nn.functional.cross_entropy(o.flatten(0, 1), b["y"].flatten())
        return nn.functional.ctc_loss(o.log_softmax(-1), b["y"], torch.full((3,), 6), torch.full((3,), 5))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", where="loss_fn", phase="forward", op="aten._ctc_loss", first_bad_step=3, sample=1,
                           **{"not": ["log_of_zero", "label_out_of_range", "bad_input_data", "zero_times_inf", "softmax_fully_masked_row"]}))
