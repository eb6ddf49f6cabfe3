import torch
from torch.utils.cpp_extension import load_inline

source = "torch::Tensor add(torch::Tensor a, torch::Tensor b) { return a + b; }"
module = load_inline("adder", cpp_sources=source, functions=["add"])
print(module.add(torch.ones(1), torch.ones(1) * 2).item())
