"""MLflow's own server over /data, in one process: ``python -m served.mlflow``.

``mlflow server`` imports everything twice, once for its command line and once for the server: 4 seconds more until the
page is up. What it would set for the server is set here, by the pinned version's names (mlflow/server/__init__.py).
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from pathlib import Path
from typing import Any

#: The folder that outlives the container.
DATA = Path("/data")
DATABASE = DATA / "mlflow.db"

#: An empty database of this version, made with the image: its tables take seconds.
TEMPLATE = Path("/opt/mlflow.db")

#: The version that wrote the database last.
VERSION = DATA / "version"

ENVIRONMENT = {
    "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{DATABASE}",
    "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(DATA / "artifacts"),
    "_MLFLOW_SGI_NAME": "uvicorn",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


def prepare(version: str) -> None:
    """The database: new from the template, or brought up to this version, with a copy of the old one beside it."""
    if not DATABASE.exists():
        aside = DATA / "mlflow.db.new"
        shutil.copyfile(TEMPLATE, aside)
        aside.rename(DATABASE)
    elif (VERSION.read_text() if VERSION.exists() else "") != version:
        shutil.copyfile(DATABASE, DATA / "mlflow.db.before")
        from mlflow.store.db import utils

        migrate: Any = utils  # untyped
        migrate._upgrade_db(migrate.create_sqlalchemy_engine_with_retry(f"sqlite:///{DATABASE}"))  # mlflow db upgrade
    VERSION.write_text(version)


def main() -> int:
    from importlib.metadata import version

    from .settings import HOSTS, serve

    scratch = DATA / "tmp"  # an artifact on its way is a file for a moment: on the disk, and not in /tmp's memory
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    os.environ.update(ENVIRONMENT, MLFLOW_SERVER_ALLOWED_HOSTS=",".join(HOSTS), TMPDIR=str(scratch))
    prepare(version("mlflow"))
    gc.disable()  # thousands of modules come, and none of their objects goes
    from mlflow.server.fastapi_app import app

    gc.freeze()
    gc.enable()
    serve(app, "mlflow")
    return 0


if __name__ == "__main__":
    sys.exit(main())
