"""The image of a tracker's page: a locked list of packages on the slim Python base, built as any image of ours."""

from __future__ import annotations

import hashlib
from importlib import resources

from seatrial.images.base import DEFAULT_BASE
from seatrial.images.dockerfile.layers import PACKAGES_FOLDER, REQUIREMENTS, TOOLS, digest_of, program
from seatrial.images.dockerfile.render import CA_SECRET, VENV_PYTHON, WHEELS, ImageContents, render
from seatrial.images.sources import ca_bundle, digest_of_sources, pip_conf, wheels_of
from seatrial.job.model import Job
from seatrial.job.plan import ImagePlan

#: Packages that the page needs and no more, each at the version it was tested with: of MLflow's, those for training
#: and scoring models are left out, which halves image and start (docs/trackers.md has the figures).
PACKAGES = "seatrial.images.tracker_packages"

#: What MLflow's image has besides: an empty database, whose tables take seconds to make.
_TEMPLATE = (
    f"GIT_PYTHON_REFRESH=quiet {VENV_PYTHON} -c 'from mlflow.store.tracking import sqlalchemy_store as store;"
    ' store.SqlAlchemyStore("sqlite:////opt/mlflow.db", "mlflow-artifacts:/")\'',
    "chmod 444 /opt/mlflow.db",
)
_AFTERWARDS = {"mlflow": _TEMPLATE}


def tracker_image(name: str, job: Job) -> ImagePlan:
    """The image of ``tensorboard`` or ``mlflow``.

    Args:
        job: says where packages come from; its target has no meaning here.

    Raises ConfigError: a bundle or folder of wheels that cannot be used.
    """
    requirements = resources.files(PACKAGES).joinpath(f"{name}.txt").read_text()
    texts = {f"{PACKAGES_FOLDER}/{REQUIREMENTS}": requirements}
    wheels = wheels_of(job)
    contents = ImageContents(
        slug=f"{name}-page",
        base=DEFAULT_BASE,
        layers={TOOLS: digest_of(texts, TOOLS), PACKAGES_FOLDER: digest_of(texts, PACKAGES_FOLDER)},
        complete=True,
        afterwards=_AFTERWARDS.get(name, ()),
        ca_bundle=job.image.ca_bundle is not None,
        pip_conf=pip_conf(job.image) is not None,
        wheels=bool(wheels),
        sources=digest_of_sources(job.image, wheels),
    )
    text = render(contents)
    return ImagePlan(
        tag=f"seatrial/{contents.slug}:{hashlib.sha256(text.encode() + program()).hexdigest()[:12]}",
        build=True,
        base=DEFAULT_BASE,
        python=VENV_PYTHON,
        dockerfile=text,
        context_texts=texts,
        context_files={f"{WHEELS}/{path.name}": str(path) for path in wheels},
        secrets={CA_SECRET: str(ca_bundle(job))} if job.image.ca_bundle else {},
        network=job.image.build_network,
    )
