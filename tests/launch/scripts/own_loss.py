"""Speech: the model gets the batch as a dictionary and computes the loss. Helpers call it, and test the norm."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

torch.manual_seed(0)


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(5, 3)

    def forward(self, batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        scores = self.encoder(batch["feats"].to(device))
        return {"loss": nn.functional.cross_entropy(scores, batch["target"].to(device))}


rows = [{"feats": torch.randn(5), "target": torch.randint(0, 3, ())} for _ in range(24)]
rows[11]["feats"][2] = torch.nan
model = Recogniser()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def forward(batch: dict[str, Tensor], found: dict[str, Tensor]) -> dict[str, Tensor]:
    found.update(model(batch, torch.device("cpu")))
    return found


def update(found: dict[str, Tensor]) -> None:
    found["loss"].backward()
    found["loss"] = found["loss"].detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    if torch.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()


for batch in DataLoader(rows, batch_size=4):  # type: ignore[arg-type]
    update(forward(batch, {}))
