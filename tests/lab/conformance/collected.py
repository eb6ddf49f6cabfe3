import gc, weakref


def fold():
    net = nn.Linear(8, 2)
    o = torch.optim.Adam(net.parameters())
    for _ in range(12):
        o.zero_grad()
        net(torch.randn(4, 8)).sum().backward()
        o.step()
        time.sleep(0.002)
    return weakref.ref(net), weakref.ref(o)


dead = [fold() for _ in range(5)]
gc.collect()
print([a() is None and b() is None for a, b in dead])
print(digest())
