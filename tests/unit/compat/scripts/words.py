"""In the manner of a word language model: embedding, LSTM, clipped gradients, several passes a step, half precision."""

import horovod.torch as hvd
import torch
from torch import nn

hvd.init()
torch.manual_seed(1)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.reads = nn.LSTM(32, 64)
        self.head = nn.Linear(64, 50)

    def forward(self, words, state):
        read, state = self.reads(self.words(words), state)
        return self.head(read).view(-1, 50), state


text = (torch.arange(4000) * 7 + hvd.rank()) % 50
model = Model()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01),
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16,
    backward_passes_per_step=2,
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
state, losses = None, []
for step in range(12):
    optimizer.zero_grad()
    for half in range(2):
        words = text[(step * 2 + half) * 140 :][:140].view(14, 10)
        output, state = model(words[:-1], state)
        state = tuple(each.detach() for each in state)
        (nn.functional.cross_entropy(output, words[1:].reshape(-1)) / 2).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    scheduler.step()
    loss = nn.functional.cross_entropy(output, words[1:].reshape(-1)).detach()
    losses.append(hvd.allreduce(loss, name="loss").item())
assert losses[-1] < losses[0] - 0.5, losses
shown = hvd.allgather_object(sum(each.double().sum().item() for each in model.parameters()))
assert shown[0] == shown[-1], shown
print(f"rank {hvd.rank()} of {hvd.size()} loss {losses[0]:.2f} to {losses[-1]:.2f}\n", end="", flush=True)
