calls = []
steps(6)
original = nn.Module.__call__


def call(self, *a, **k):
    calls.append(type(self).__name__)
    return original(self, *a, **k)


nn.Module.__call__ = call
steps(60)
print(len(calls), nn.Module.__call__ is call)
nn.Module.__call__ = original
steps(20)
print(len(calls), nn.Module.__call__ is nn.Module._wrapped_call_impl or nn.Module.__call__.__qualname__, digest())
