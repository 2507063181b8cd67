"""Fine-tune a classifier of texts whose forward takes a batch by name, and returns an object with ``.loss``."""

import sys
from dataclasses import dataclass

import torch
from torch import nn

rank, size = 0, 1
torch.manual_seed(0)
ids = torch.randint(1, 30, (120, 10))
lengths = 3 + torch.arange(120) % 8
data = {"input_ids": ids, "attention_mask": (torch.arange(10) < lengths[:, None]).long(), "labels": ids[:, 0] % 3}


@dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings, self.norm = nn.Embedding(30, 12, padding_idx=0), nn.LayerNorm(12)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.pooler, self.classifier = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, input_ids, attention_mask, labels=None):
        x = self.norm(self.embeddings(input_ids))
        x = x + self.attention(x, x, x, key_padding_mask=attention_mask == 0, need_weights=False)[0]
        logits = self.classifier(torch.tanh(self.pooler(x[:, 0])))
        return Output(None if labels is None else nn.functional.cross_entropy(logits, labels), logits)


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, total_iters=4)
losses = []
for _ in range(4):
    for begin in (0, 60):
        batch = {name: each[begin + rank : begin + 60 : size] for name, each in data.items()}
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
    scheduler.step()
    with torch.no_grad():
        losses.append(float(model(**data).loss))
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
if rank == 0:
    torch.save(state, sys.argv[1])
