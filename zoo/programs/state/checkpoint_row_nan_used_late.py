"""A "pretrained" embedding is loaded with load_state_dict; one of its rows (id 13, a special token) is NaN in the file. Nobody uses it until step 3.
Steps 0..2 are healthy: an unused NaN row harms nothing (dense gradient 0, SGD)."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(16, 6); s.rnn = nn.GRU(6, 6, batch_first=True); s.head = nn.Linear(6, 16)
    def forward(s, x): return s.head(s.rnn(s.emb(x))[0])

def build():
    torch.manual_seed(0); model = Net(); sd = {k: v.clone() for k, v in model.state_dict().items()}
    sd["emb.weight"][13] = float("nan"); model.load_state_dict(sd)
    opt = torch.optim.SGD(model.parameters(), lr=0.1); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 13, (3, 6), generator=g) for _ in range(6)]; batches[3][1, 4] = 13
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b)[:, :-1].flatten(0, 1), b[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", also=["state_overwritten"], module="emb", phase="forward", also_phase=["state"], op="aten.embedding", also_op=["state"], first_bad_step=3, param="emb.weight",
                           **{"not": ["bad_input_data", "label_out_of_range", "hardware_fault", "lr_too_high", "exploding_recurrence"]}))
