"""Every CUDA text that the library compiles, for the formats, shapes and flags that the recipes use.

Shapes: of MNIST 28×28 and of digits 8×8, of CIFAR-10's network, of BERT-base, and of ResNet-18.
"""

import re
from itertools import product
from pathlib import Path

#: The begin of a kernel in a text, and its name.
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\([^)]*\)')
FOLDER = Path(__file__).parents[1] / "src" / "seatrial" / "train" / "kernels" / "cuda"


def texts(group):
    """Name → text, without doubles, of one of GROUPS."""
    found = {}
    for name, text in group():
        if text not in found.values():
            assert name not in found
            found[name] = text
    return found


def networks():
    """mnist, digits and mnist-deep: the step of the first, Adam, and the gathering of images."""
    from seatrial.recipes import mnist, mnist_deep
    from seatrial.train.kernels import lenet, multi_tensor
    from seatrial.train.kernels.ops import module

    for number, each in enumerate(lenet.modules(lenet.LenetShape(28, 28, 10))):
        yield f"mnist-{number}", each.text
    models = {
        "mnist": mnist.network(28, 28, 10),
        "deep": mnist_deep.network(1, 10),
        "colour": mnist_deep.network(3, 10),
    }
    for name, model in models.items():
        yield f"{name}-adam", multi_tensor.adam_module(tuple((each.numel(), 1e-4) for each in model.parameters())).text
    yield "gather", module("gather.cu").text


def cifar10():
    """In bf16 and fp16, with its two optimizers' kernels."""
    import torch

    from seatrial.recipes import cifar10
    from seatrial.train.kernels import multi_tensor

    for dtype in (torch.float16, torch.bfloat16):
        for number, each in enumerate(cifar10.modules(cifar10.WIDTHS, 10, dtype)):
            yield f"cifar10-{short(dtype)}-{number}", each.text
    model = cifar10.Network(10, cifar10.WIDTHS)
    sizes = tuple((each.numel(), 1e-3) for each in model.parameters() if each.ndim != 4)
    yield "cifar10-nesterov", multi_tensor.nesterov_module(sizes).text


def bert():
    """BERT-base's rows of 768, with dropout and without."""
    import torch

    from seatrial.train.kernels import bert, flat_adam

    rule = flat_adam.Rule((0.9, 0.999), 1e-8, 0.01)
    for dtype in (torch.bfloat16, torch.float32):
        kind = short(dtype)
        yield f"gelu-{kind}", bert.gelu_module(dtype).text
        yield f"flat-adam-{kind}", flat_adam.kernels(dtype, rule).text
        yield f"token-sums-{kind}", bert.token_sums_module(dtype, 768).text
        for share in (0.1, 0.0):
            yield f"norm-residual-{kind}-{share}", bert.norm_module(dtype, 768, share).text
    yield from ((f"short-attention-{share}", bert.attention_module(share).text) for share in (0.1, 0.0))


def any_model():
    """Return texts of kernels for any module: normalisations of ResNet-18's widths."""
    import torch

    from seatrial.train.kernels import batch_norm

    floats = (torch.bfloat16, torch.float32)
    for dtype, (channels, activation) in product(floats, ((64, "relu"), (512, "relu"), (512, "none"), (128, "gelu"))):
        name = f"normact-{short(dtype)}-{channels}-{activation}"
        yield name, batch_norm.norm_act_module(dtype, channels, activation).text
    for dtype in floats:
        yield f"pooled-norm-{short(dtype)}-relu", batch_norm.pooled_modules(dtype, 64, "relu")[0].text


#: Each takes some seconds to compile for one kind of GPU.
GROUPS = (networks, cifar10, bert, any_model)


def dynamic():
    """(kernel, its text, bytes of shared memory that it is launched with), of those that ask for some."""
    from seatrial.train.kernels import bert, lenet

    shape = lenet.LenetShape(28, 28, 10)
    forward, _, back = (each.text for each in lenet.modules(shape))
    names, texts = ("second_layer", "hidden", "layers_back"), (forward, forward, back)
    yield from zip(names, texts, shape.shared_bytes, strict=True)
    yield "attention_forward", bert.attention_module(0.1).text, bert.FORWARD_BYTES
    yield "attention_backward", bert.attention_module(0.1).text, bert.BACK_BYTES


def short(dtype):
    return str(dtype).removeprefix("torch.")


def written():
    """(file, kernel, its head) of every kernel of the training library."""
    for path in sorted(FOLDER.glob("*.cu")):
        for match in KERNEL.finditer(path.read_text()):
            yield path.name, match[1], match[0]
