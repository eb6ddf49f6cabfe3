from torch.overrides import TorchFunctionMode

log = {}


class Count(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        for name in ("item", "to", "__bool__"):
            if func is getattr(torch.Tensor, name):
                log[name] = log.get(name, 0) + 1
        log["all"] = log.get("all", 0) + 1
        return func(*args, **(kwargs or {}))


steps(2)
with Count():
    for _ in range(60):
        step().item()
        torch.ones(2).to(torch.float64)
steps(10)
print(log, digest())
