steps(6)
a = torch.overrides.get_overridable_functions()
ignored = torch.overrides.get_ignored_functions()
steps(40)
b = torch.overrides.get_overridable_functions()
print(
    {type(f).__name__ for f in b[torch.Tensor]} == {type(f).__name__ for f in b[torch.Tensor]},
    torch.Tensor.item in b[torch.Tensor],
    torch.tensor in torch.overrides.get_ignored_functions(),
    digest(),
)
