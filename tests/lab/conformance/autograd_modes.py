from torch.autograd import grad, backward

steps(4)
with torch.no_grad(), torch.inference_mode(False):
    print(torch.is_grad_enabled())
x = torch.ones(3, requires_grad=True)
print(grad(x.pow(2).sum(), x)[0].tolist(), backward is torch.autograd.backward, grad is torch.autograd.grad)
print(
    torch.func.grad(lambda v: v.pow(3).sum())(torch.ones(2)).tolist(),
    torch.func.hessian(lambda v: v.pow(3).sum())(torch.ones(2)).tolist(),
)
with torch.autograd.set_detect_anomaly(True):
    steps(30)
print(torch.autograd.backward.__module__, torch.autograd.grad.__module__, digest())
