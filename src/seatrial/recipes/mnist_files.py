"""The original MNIST files: where they are public, and their digests. Imports no framework."""

from __future__ import annotations

from seatrial.train.data.download import RemoteFile

#: Public mirrors of the original files, as torchvision 0.27 (datasets/mnist.py) and TensorFlow Datasets name them.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
#: SHA-256 of files whose MD5 are the ones torchvision publishes (f68b3c2d…, d53e105e…, 9fb629c4…, ec29112d…).
FILES = (
    RemoteFile("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    RemoteFile("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    RemoteFile("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    RemoteFile("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
