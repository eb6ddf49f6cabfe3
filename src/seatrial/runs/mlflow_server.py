"""MlflowServer: the few questions that the host asks an MLflow server, over its REST API.

Source: mlflow.org/docs/latest/api_reference/rest-api.html; the artifacts' proxy: mlflow/server/handlers.py, 3.17.
What it answers is not believed: sizes, IDs and addresses are checked.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from seatrial.errors import EngineError
from seatrial.runs.mlflow_login import RUN_TAG, login_of
from seatrial.runs.services import Service
from seatrial.system.address import is_loopback

OUTCOME_TAG = "seatrial.outcome"

_MOST_BYTES = 8 << 20
_ANSWER_S = 5.0
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_MOST_EXPERIMENTS, _MOST_RUNS = 1000, 50


@dataclass(frozen=True)
class Found:
    """A run in MLflow. ``artifacts``: its folder behind the server's proxy; None where the server has none for it."""

    id: str
    experiment: str
    status: str
    artifacts: str | None


class MlflowServer:
    """A server and the login for it.

    Args:
        url: ending in "/" or not.
    """

    def __init__(self, url: str, login: Mapping[str, str]) -> None:
        self._url, self._login = url.rstrip("/"), dict(login)
        local = is_loopback(urlsplit(url).hostname or "")
        handlers = [urllib.request.ProxyHandler({})] if local else []
        self._opener = urllib.request.build_opener(*handlers, _NoRedirect())

    def check(self) -> None:
        """Raises OSError (HTTPError among them): it does not answer, or not to this login."""
        self._post("experiments/search", {"max_results": 1})

    def runs_of(self, run_id: str) -> Iterator[Found]:
        """The MLflow runs that a run of ours has logged. Raises OSError, ValueError."""
        experiments = self._post("experiments/search", {"max_results": _MOST_EXPERIMENTS}).get("experiments", [])
        ids = [each["experiment_id"] for each in experiments if _ID.fullmatch(str(each.get("experiment_id")))]
        wanted = {
            "experiment_ids": ids,
            "filter": f"tags.`{RUN_TAG}` = '{run_id}'",
            "max_results": _MOST_RUNS,
            "order_by": ["attributes.start_time ASC"],
        }
        for run in self._post("runs/search", wanted).get("runs", []) if ids else []:
            info = run["info"]
            found, experiment = str(info["run_id"]), str(info["experiment_id"])
            if _ID.fullmatch(found) and _ID.fullmatch(experiment):
                yield Found(found, experiment, str(info.get("status")), _behind_proxy(str(info.get("artifact_uri"))))

    def page(self, found: Found) -> str:
        return f"{self._url}/#/experiments/{found.experiment}/runs/{found.id}?workflowType=machine_learning"

    def tag(self, found: Found, key: str, value: str) -> None:
        """Raises OSError."""
        self._post("runs/set-tag", {"run_id": found.id, "key": key, "value": value[:4000]})

    def end(self, found: Found, status: str, ended_at_s: float) -> None:
        """For a run that nobody ended: FINISHED, FAILED or KILLED. Raises OSError."""
        self._post("runs/update", {"run_id": found.id, "status": status, "end_time": int(ended_at_s * 1000)})

    def upload(self, found: Found, name: str, data: bytes, media_type: str) -> None:
        """Put a file among a run's artifacts. Raises OSError."""
        assert found.artifacts is not None, "its artifacts are behind the server's proxy"
        path = quote(f"{found.artifacts}/{name}")
        self._ask("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{path}", data, media_type)

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._ask("POST", f"/api/2.0/mlflow/{path}", json.dumps(body).encode(), "application/json")
        try:
            loaded = json.loads(answer or b"{}")
        except RecursionError:
            loaded = None
        if not isinstance(loaded, dict):
            raise ValueError("the server's answer is no MLflow server's")
        return loaded

    def _ask(self, method: str, path: str, data: bytes, media_type: str) -> bytes:
        request = urllib.request.Request(f"{self._url}{path}", data=data, method=method)
        request.add_header("Content-Type", media_type)
        for name, value in authorization(self._login).items():
            request.add_header(name, value)
        try:
            with self._opener.open(request, timeout=_ANSWER_S) as answer:
                text: bytes = answer.read(_MOST_BYTES + 1)
        except http.client.HTTPException as error:  # no HTTP at all, or cut off
            raise ValueError(f"no answer of HTTP: {type(error).__name__}") from error
        if len(text) > _MOST_BYTES:
            raise ValueError("the server's answer is larger than any of MLflow's")
        return text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A login is not sent on to wherever a server points."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


def authorization(login: Mapping[str, str]) -> dict[str, str]:
    """As MLflow's client has it: user and password before the token."""
    if login.get("MLFLOW_TRACKING_USERNAME") and login.get("MLFLOW_TRACKING_PASSWORD"):
        both = f"{login['MLFLOW_TRACKING_USERNAME']}:{login['MLFLOW_TRACKING_PASSWORD']}"
        return {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}
    if login.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {login['MLFLOW_TRACKING_TOKEN']}"}
    return {}


def require(service: Service, environ: Mapping[str, str]) -> None:
    """Raises EngineError: the server does not answer, so that a client in a run would wait for minutes."""
    try:
        MlflowServer(service.url, login_of(service, environ)).check()
    except (OSError, ValueError) as error:
        raise silent(service, error) from error


def silent(service: Service, error: Exception) -> EngineError:
    """What to say of a server that does not answer, or refuses."""
    if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
        ask = "read -rs MLFLOW_TRACKING_TOKEN && export MLFLOW_TRACKING_TOKEN"
        return EngineError(
            f"The MLflow server {service.url} refuses the login: {error.code} {error.reason}",
            cause="MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD, are not those of this server",
            run="seatrial up mlflow" if service.ours else ask,
        )
    why = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", None) or error
    if service.ours:
        return EngineError(
            f"MLflow at {service.url} does not answer: {why}",
            run="seatrial up mlflow   # or without it: seatrial runs stop mlflow",
        )
    return EngineError(
        f"The MLflow server {service.url} (MLFLOW_TRACKING_URI) does not answer: {why}",
        run="env -u MLFLOW_TRACKING_URI seatrial up mlflow   # one of your own; without any: seatrial runs stop mlflow",
    )


def _behind_proxy(uri: str) -> str | None:
    """``0/ID/artifacts`` of ``mlflow-artifacts:/0/ID/artifacts``; None for what lies in a store of its own."""
    match = re.fullmatch(r"mlflow-artifacts:(?://[^/]*)?/([0-9A-Za-z_./-]+)", uri)
    return match[1] if match and ".." not in match[1] else None
