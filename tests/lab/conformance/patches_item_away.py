calls = []
original = torch.Tensor.item


def item(self):
    calls.append(1)
    return original(self)


torch.Tensor.item = item
for _ in range(6):
    step().item()
torch.Tensor.item = original
for _ in range(60):
    step().item()
print(len(calls), torch.Tensor.item is original, digest())
