"""A stand-in for the two parts of torchvision that the tutorials' scripts use; not installed where tests run."""

from . import datasets, transforms  # noqa: F401
