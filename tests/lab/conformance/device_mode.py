steps(5)
with torch.device("meta"):
    print(torch.tensor([1]).device, torch.zeros(2).device, nn.Linear(2, 2).weight.device)
steps(60)
with torch.device("meta"):
    print(torch.tensor([1]).device, torch.as_tensor([1.0]).device, torch.arange(3).device)
print(digest())
