"""Import name → package name on the Python Package Index, where the two differ."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from seatrial.job.reading.modules import is_file, is_folder

#: Source of each row: the project's page at https://pypi.org/project/<package>/. opencv-python-headless, because a
#: container has no display and the plain package needs libGL; faiss-cpu, because there is no other wheel.
PACKAGE_OF_IMPORT: dict[str, str] = {
    "Crypto": "pycryptodome",
    "Levenshtein": "levenshtein",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "absl": "absl-py",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "google": "protobuf",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "imblearn": "imbalanced-learn",
    "jwt": "pyjwt",
    "mpl_toolkits": "matplotlib",
    "pkg_resources": "setuptools<81",  # removed from setuptools in 81, says its own warning
    "pynvml": "nvidia-ml-py",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "umap": "umap-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}

#: Standard modules that came or went between Python 3.10 and 3.14: the host's list may lack what the image has, or
#: the other way round. Source: "What's New in Python" 3.11 to 3.14.
_STANDARD_SOMEWHERE = frozenset(
    {
        *("annotationlib", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "compression", "crypt"),
        *("distutils", "imghdr", "imp", "lib2to3", "mailcap", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr"),
        *("spwd", "sunau", "telnetlib", "tomllib", "uu", "xdrlib"),
    }
)

_OURS = "seatrial"

#: Source: packaging.python.org/specifications/name-normalization; longer names than 100 there are none.
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_]{0,98}[A-Za-z0-9])?")


def packages_of_imports(imports: Iterable[str], local_roots: Iterable[Path]) -> tuple[str, ...]:
    """Packages that provide these top-level names, sorted; neither standard modules nor the project's own.

    A name without a row in the table is taken to be its own package's, unless no package can be called so,
    as ``_C`` and ``é``.

    Args:
        local_roots: folders whose modules and packages belong to the project.
    """
    roots = list(local_roots)
    foreign = (
        name
        for name in imports
        if name not in sys.stdlib_module_names
        and name not in _STANDARD_SOMEWHERE
        and name != _OURS
        and _PACKAGE.fullmatch(name)
        and not any(is_file(root / f"{name}.py") or is_folder(root / name) for root in roots)
    )
    return tuple(sorted({PACKAGE_OF_IMPORT.get(name, name.replace("_", "-")) for name in foreign}, key=str.lower))
