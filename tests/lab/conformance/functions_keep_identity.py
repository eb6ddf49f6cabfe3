from torch import equal, save, tensor
import torch.serialization, torch.functional

kept = {
    name: getattr(torch, name) for name in ("equal", "tensor", "as_tensor", "nonzero", "save", "allclose", "bincount")
}
seen = set()
for _ in range(70):
    step()
    seen |= {name for name, each in kept.items() if getattr(torch, name) is not each}
print(sorted(seen), torch.equal is equal, torch.tensor is tensor, torch.save is torch.serialization.save)
print(type(torch.equal).__name__, type(pickle.dump).__name__, sys.excepthook is sys.__excepthook__)
print(len(pickle.dumps([torch.save, torch.equal, pickle.dump, nn.Module.train, torch.optim.SGD.step])), digest())
