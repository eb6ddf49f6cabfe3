def hook(kind, error, trace):
    print("mine:", kind.__name__, error, trace is not None)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = hook
steps(10)


def bad():
    raise ValueError("end")


def backward(g):
    bad()


x = net(torch.randn(4, 8))
x.register_hook(backward)
x.sum().backward()
