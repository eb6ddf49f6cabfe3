calls = []
steps(5)
original = torch.Tensor.item


def item(self):
    calls.append(1)
    return original(self)


torch.Tensor.item = item
for _ in range(54):
    step().item()
print(len(calls), torch.Tensor.item is item)
torch.Tensor.item = original
for _ in range(30):
    step().item()
print(len(calls), type(torch.Tensor.item).__name__, digest())
