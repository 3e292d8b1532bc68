"""Fine-tuning starts from a checkpoint whose second block holds NaN (it was saved after the run had failed).
True cause: corrupt checkpoint: blocks.1.fc.weight is non-finite right after load_state_dict."""
import torch, torch.nn as nn

class Block(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(8, 8); s.act = nn.GELU()
    def forward(s, x): return x + s.act(s.fc(x))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.blocks = nn.ModuleList([Block() for _ in range(3)]); s.head = nn.Linear(8, 2)
    def forward(s, x):
        for block in s.blocks: x = block(x)
        return s.head(x)

def build():
    torch.manual_seed(0); saved = Net().state_dict(); saved["blocks.1.fc.weight"][3] = float("nan")
    model = Net(); model.load_state_dict(saved); opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 8, generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(2)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=1, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", module="blocks.1.fc", phase="state", op="aten.addmm", first_bad_step=0, state="blocks.1.fc.weight"))
