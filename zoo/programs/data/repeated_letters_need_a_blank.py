"""A transcript of 5 letters for 5 output frames: it fits, but two letters are repeated and CTC needs a blank between them.
After https://github.com/SeanNaren/warp-ctc/issues/29 (consecutive repetitions in the label need a longer model output).
True cause: the alignment is impossible because of the repeats."""
import torch, torch.nn as nn, torch.nn.functional as F

def build():
    torch.manual_seed(4); net = nn.LSTM(3, 6, batch_first=True, proj_size=0); head = nn.Linear(6, 5)
    model = nn.ModuleDict({"lstm": net, "head": head}); opt = torch.optim.SGD(model.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(1); words = [[[1, 2, 3, 4, 1], [2, 3, 1, 4, 2]], [[4, 2, 4, 1, 3], [1, 3, 2, 3, 1]], [[2, 1, 3, 4, 2], [1, 1, 2, 4, 4]]]
    batches = [(torch.randn(2, 5, 3, generator=g), torch.tensor(w)) for w in words]
    def loss_fn(m, b):
        h, _ = m["lstm"](b[0])
        lp = F.log_softmax(m["head"](h), 2).permute(1, 0, 2)
        return F.ctc_loss(lp, b[1], input_lengths=(5, 5), target_lengths=(5, 5), reduction="sum")
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=2, line="return F.ctc_loss(", sample=1))
