"""Fine-tuning from a checkpoint that was saved after the NaN: one decoder bias is NaN in the file; load_state_dict does not complain.
True cause: corrupt checkpoint (weights non-finite right after loading)."""
import io, torch, torch.nn as nn

class Seq2(nn.Module):
    def __init__(s): super().__init__(); s.encoder = nn.GRU(5, 10, batch_first=True); s.decoder = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2))
    def forward(s, x): return s.decoder(s.encoder(x)[0][:, -1])

def build():
    torch.set_num_threads(1); torch.manual_seed(0); old = Seq2(); f = io.BytesIO()
    with torch.no_grad(): old.decoder[0].bias[6] = float("nan")
    torch.save({"model": old.state_dict(), "epoch": 12}, f); f.seek(0)
    model = Seq2(); model.load_state_dict(torch.load(f)["model"]); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(4, 7, 5, generator=g), torch.randn(4, 2, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", module="decoder.0", phase="forward", op="aten.addmm", first_bad_step=0, state="decoder.0.bias",
                           note="parameter is non-finite BEFORE step 0, right after load_state_dict"))
