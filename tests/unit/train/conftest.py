"""A small training that every test can vary: 130 images of 3 classes, a network with dropout."""

from collections.abc import Callable
from typing import Any

import pytest

from cuda_on_cpu import device, kernels_on_cpu  # noqa: F401  fixtures


@pytest.fixture
def make_step() -> Callable[..., Any]:
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.nn import functional as F

    from seatrial.train.data.images import ImageSet, ResidentImages
    from seatrial.train.distributed import Ranks
    from seatrial.train.optim.optimizer import adam
    from seatrial.train.precision import Precision
    from seatrial.train.saving.examples import Normalisation
    from seatrial.train.saving.rng import seed_all
    from seatrial.train.step import Step

    cpu = torch.device("cpu")

    def make(
        *, ranks=None, batch=32, source=ResidentImages, network=None, loss=None, optimizer=None, seed=0, **options
    ):
        ranks = ranks or Ranks(0, 1, cpu)
        generator = torch.Generator().manual_seed(5)
        labels_N = torch.randint(0, 3, (130,), generator=generator)
        images_NCHW = torch.randint(0, 100, (130, 1, 6, 6), generator=generator)
        images_NCHW[torch.arange(130), 0, labels_N * 2] += 120
        data = ImageSet(images_NCHW.to(torch.uint8), labels_N, 3)
        seed_all(seed)
        model = network() if network else nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))
        batches = source(data, Normalisation.of(data.images_NCHW), batch, ranks, seed, options.pop("augment", None))
        return Step(
            model,
            loss or (lambda model, images, labels: F.cross_entropy(model(images), labels)),
            optimizer(model) if optimizer else adam(model, 1e-2),
            batches,
            ranks=ranks,
            precision=Precision(options.pop("precision", "fp32"), cpu),
            **options,
        )

    return make
