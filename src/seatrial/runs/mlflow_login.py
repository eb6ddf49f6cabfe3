"""What a run brings to an MLflow server: its login, and the tag that says which run of ours it is."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.runs.services import Service

#: Tag of an MLflow run: which run of ours logged it. MLFLOW_RUN_CONTEXT puts it there.
RUN_TAG = "seatrial.run"

#: A login of MLflow's client, as it finds it in its environment.
LOGIN = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


def login_of(service: Service, environ: Mapping[str, str]) -> dict[str, str]:
    """Ours by its token, a user's server by what is in their environment."""
    if service.token is not None:
        return {"MLFLOW_TRACKING_TOKEN": service.token}
    return {name: environ[name] for name in LOGIN if environ.get(name)}
