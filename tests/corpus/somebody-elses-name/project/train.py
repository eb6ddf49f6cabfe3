import torch
from apex import amp

print(amp, torch)
