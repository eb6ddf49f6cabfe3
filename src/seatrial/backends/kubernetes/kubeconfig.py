"""The kubeconfig, looked at before kr8s signs in with it: kr8s takes its keys and types for granted.

Source: kubernetes.io/docs/reference/config-api/kubeconfig.v1. Keys that are not here are anybody's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seatrial.errors import ConfigError
from seatrial.system.project_files import read_text
from seatrial.system.shown import shown
from seatrial.system.yaml_file import MAX_BYTES, parse_yaml


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, alias_generator=lambda name: name.replace("_", "-"))


class _ClusterPart(_Part):
    server: Annotated[str, Field(pattern=r"^https?://[!-~]+$")]
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _ContextPart(_Part):
    cluster: str
    user: str
    namespace: str = ""


class _Variable(_Part):
    name: str
    value: str


class _Program(_Part):
    command: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    api_version: Annotated[str, Field(alias="apiVersion")]


class _ProviderConfig(_Part):
    id_token: str = ""


class _Provider(_Part):
    name: str
    config: _ProviderConfig | None = None


class _UserPart(_Part):
    token: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: _Program | None = None
    auth_provider: _Provider | None = None


class _NamedCluster(_Part):
    name: str
    cluster: _ClusterPart


class _NamedContext(_Part):
    name: str
    context: _ContextPart


class _NamedUser(_Part):
    name: str
    user: _UserPart


class _File(_Part):
    current_context: str = ""
    clusters: list[_NamedCluster] = []
    contexts: list[_NamedContext] = []
    users: list[_NamedUser] = []


def read_kubeconfig(path: Path) -> dict[str, Any]:
    """The file's data, of the types that it must have. Raises ConfigError naming ``file: key``."""
    data = parse_yaml(read_text(path, inside=None, limit_bytes=MAX_BYTES), str(path))
    run = f"kubectl config view --kubeconfig {path}"
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{path} is not a kubeconfig: expected a table, got {shown(data)}", run=run)
    try:
        _File.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {key}: {first['msg']}, got {shown(first['input'])}", run=run) from None
    return data
