log = {}


class Watched(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        for name in ("item", "to", "__bool__", "cpu"):
            log[name] = log.get(name, 0) + (func is getattr(torch.Tensor, name))
        log["equal"] = log.get("equal", 0) + (func is torch.equal)
        return super().__torch_function__(func, types, args, kwargs or {})


for _ in range(60):
    step()
    x = torch.ones(3).as_subclass(Watched)
    x.sum().item()
    x.to(torch.float64).cpu()
    bool(x.any())
    torch.equal(x, x)
print(log, digest())
