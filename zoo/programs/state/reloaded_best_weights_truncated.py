"""Early stopping that goes back to the best weights at the start of an epoch. The file was written while another process truncated
it, and one tensor in it is NaN. load_state_dict succeeds; the first forward after it is NaN.
True cause: a corrupt checkpoint. Optimizer state, batch and rate are fine."""
import io
import torch
import torch.nn as nn
import torch.nn.functional as F


class TextCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40, 12)
        self.conv = nn.Conv1d(12, 16, 3, padding=1)
        self.fc = nn.Linear(16, 4)

    def forward(self, ids):
        x = torch.relu(self.conv(self.emb(ids).transpose(1, 2)))
        return self.fc(x.amax(-1))


def best_checkpoint(model):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    state["conv.weight"][9:] = float("nan")                 # the torn tail of the tensor
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def build():
    torch.manual_seed(0)
    model = TextCnn()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    best = best_checkpoint(model)
    g = torch.Generator().manual_seed(1)
    batches = [{"ids": torch.randint(0, 40, (8, 10), generator=g), "y": torch.randint(0, 4, (8,), generator=g), "reload": i == 4}
               for i in range(7)]

    def loss_fn(m, b):
        if b["reload"]:
            m.load_state_dict(torch.load(io.BytesIO(best), weights_only=True))
        return F.cross_entropy(m(b["ids"]), b["y"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", module="conv", phase="state", op=None, first_bad_step=4, state="conv.weight",
                           also=dict(phase=["forward"], op=["aten.convolution", "aten.copy_"], cause=["state_overwritten"])))
