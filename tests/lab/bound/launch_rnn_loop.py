# expect: launch-bound
"""The character RNN tutorial: one letter at a time through Linear layers, in a Python loop over the word."""

import sys
import time

import torch
from torch import nn


class RNN(nn.Module):
    def __init__(self, letters, hidden, languages):
        super().__init__()
        self.hidden_size = hidden
        self.i2h = nn.Linear(letters, hidden)
        self.h2h = nn.Linear(hidden, hidden)
        self.h2o = nn.Linear(hidden, languages)

    def forward(self, letter, hidden):
        hidden = torch.tanh(self.i2h(letter) + self.h2h(hidden))
        return torch.log_softmax(self.h2o(hidden), dim=1), hidden


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rnn = RNN(57, 128, 18).to(device)
optimizer = torch.optim.SGD(rnn.parameters(), lr=0.005)
names = torch.nn.functional.one_hot(torch.randint(0, 57, (100, 32)), 57).float().to(device)
languages = torch.randint(0, 18, (100,), device=device)
end, n = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    hidden = torch.zeros(1, rnn.hidden_size, device=device)
    for i in range(32):
        output, hidden = rnn(names[n % 100, i : i + 1], hidden)
    loss = nn.functional.nll_loss(output, languages[n % 100].view(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    n += 1
    if n % 500 == 0:
        print(n, loss.item())
