import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model, optimizer = torch.nn.Linear(4, 1), None
model = accelerator.prepare(model)
accelerator.backward(model(torch.ones(2, 4)).sum())
accelerator.print("processes", accelerator.num_processes)
