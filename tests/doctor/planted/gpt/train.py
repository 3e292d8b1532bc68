import torch
import torch.nn.functional as F
from data import batches
from model import GPT

learning_rate = 3e-4
block_size = 256
clip = 1.0


def train(model, optimizer, scaler):
    for tokens, targets, mask in batches(block_size):
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(tokens, mask)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    model = GPT(50304, 384).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    train(model, optimizer, torch.amp.GradScaler())
