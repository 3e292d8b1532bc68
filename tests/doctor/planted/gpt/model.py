from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, padding_mask):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        return scores.softmax(dim=-1) @ v


class GPT(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.attention = Attention(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, mask):
        x = self.embedding(tokens)
        x = x + self.attention(x, mask)
        return self.head(x)
