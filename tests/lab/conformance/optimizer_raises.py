class Bad(torch.optim.SGD):
    n = 0

    def step(self, closure=None):
        Bad.n += 1
        if Bad.n in (5, 8):
            raise RuntimeError("no memory")
        return super().step(closure)


opt = Bad(net.parameters(), lr=0.05)
for _ in range(50):
    try:
        step()
    except RuntimeError as error:
        print(error, error.__traceback__.tb_next is not None)
print(digest(), len(sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks) <= 1)
