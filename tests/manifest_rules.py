"""Validation of manifests as an API server does it: schemas of core kinds and CRDs, and rules that JSON Schema lacks.

Checked beyond types, required keys, enums, patterns and sizes: unknown keys (``fieldValidation: Strict``), lists that
are maps or sets (``x-kubernetes-list-type``), and CEL rules (``x-kubernetes-validations``) of an object that is new.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft7Validator

from jobset_rules import jobset_violations

CRDS = Path(__file__).parents[2] / "shared" / "k8s" / "crds"
#: Kind → its CRD's file.
CUSTOM = {
    "PyTorchJob": "kubeflow.org_pytorchjobs.yaml",
    "TrainJob": "trainer.kubeflow.org_trainjobs.yaml",
    "ClusterTrainingRuntime": "trainer.kubeflow.org_clustertrainingruntimes.yaml",
}
#: Versions of Kubernetes whose schemas the installed kubernetes-validate has, from 1.25 on.
VERSIONS = [f"1.{minor}" for minor in range(25, int(kubernetes_validate.latest_version().split(".")[1]) + 1)]

Schema = dict[str, Any]


def violations(manifest: dict[str, Any], version: str = VERSIONS[-1]) -> list[str]:
    """Return errors as ``path: words``; [] for a valid manifest.

    Args:
        version: of Kubernetes, for kinds of its own.

    Raises LookupError for a kind without a schema here.
    """
    if manifest["kind"] == "JobSet":
        return list(jobset_violations(manifest, lambda job: violations(job, version)))
    if manifest["kind"] in CUSTOM:
        schema, validator = _custom_schema(manifest["kind"])
        wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]
        webhook = _trainer_webhook(manifest) if manifest["kind"] == "TrainJob" else ()
        return [*wrong, *_rules(schema, manifest, "$", lambda ref: {}), *webhook]
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        raise LookupError(f"no schema is known of {manifest['kind']} in {manifest['apiVersion']}") from None
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    schema, resolve = _core_schema(manifest["apiVersion"], manifest["kind"], version)
    return list(_rules(schema, manifest, "$", resolve))


def _trainer_webhook(manifest: dict[str, Any]) -> Iterator[str]:
    """Check rules of Trainer's validating webhook that our TrainJobs could break.

    Source: kubeflow/trainer v2.3.0, pkg/runtime/framework/plugins: jobset/jobset.go, torch/torch.go.
    """
    spec = manifest["spec"]
    yield from (f"env {each['name']} is reserved" for each in spec["trainer"]["env"] if each["name"].startswith("PET_"))
    for patch in spec["runtimePatches"]:
        domain, slash, path = patch["manager"].partition("/")
        if not (re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", domain) and slash and path):
            yield f"manager {patch['manager']} is not a domain-prefixed path"
        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            pod = job["template"]["spec"]["template"]["spec"]
            if (
                job["name"] != "node"
                or pod.get("initContainers")
                or [each["name"] for each in pod["containers"]] != ["node"]
            ):
                yield f"the runtimes of Trainer have no such job or container: {job['name']}"
            yield from ("a patch has env" for each in pod["containers"] if each.get("env"))


@cache
def _custom_schema(kind: str) -> tuple[Schema, Draft7Validator]:
    path = CRDS / CUSTOM[kind]
    if not path.is_file():
        raise LookupError(f"the CRD of {kind} is not next to the repository")
    crd = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    [version] = [one for one in crd["spec"]["versions"] if one["storage"]]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema, Draft7Validator(_closed(schema))


@cache
def _core_schema(api_version: str, kind: str, version: str) -> tuple[Schema, Callable[[str], Schema]]:
    root = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    definitions: Schema = json.loads((root / "_definitions.json").read_text())
    definitions = definitions.get("$defs") or definitions["definitions"]
    group, _, its_version = api_version.rpartition("/")
    name = "-".join(filter(None, [kind.lower(), group.partition(".")[0], f"{its_version}.json"]))
    return json.loads((root / name).read_text()), lambda ref: definitions[ref.rpartition("/")[2]]


def _closed(schema: Any) -> Any:
    """Unknown keys are errors, as ``fieldValidation: Strict`` has it; the API server's int-or-string is understood."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]  # its pattern is for strings alone
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        preserved = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("description", "").startswith(
            "APIV"
        )
        free = preserved or schema["properties"].keys() <= {"apiVersion", "kind"} or not schema["properties"]
        closed["additionalProperties"] = True if free else {"not": {}}
    return closed


def _rules(schema: Schema, value: Any, path: str, resolve: Callable[[str], Schema]) -> Iterator[str]:
    """Check rules that JSON Schema lacks, here and below."""
    while "$ref" in schema:
        schema = resolve(schema["$ref"])
    yield from _cel(schema, value, path)
    if isinstance(value, list):
        yield from _list_rules(schema, value, path)
        items = schema.get("items") or {}
        for index, item in enumerate(value):
            yield from _rules(items, item, f"{path}[{index}]", resolve)
    elif isinstance(value, dict):
        known, others = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, item in value.items():
            below = known.get(key, others)
            if isinstance(below, dict):
                yield from _rules(below, item, f"{path}.{key}", resolve)


def _list_rules(schema: Schema, value: list[Any], path: str) -> Iterator[str]:
    """Source: kubernetes.io/docs/reference/using-api/server-side-apply, merge strategy."""
    kind = schema.get("x-kubernetes-list-type")
    if kind == "map":
        keys = schema["x-kubernetes-list-map-keys"]
        given = [tuple(item.get(key) for key in keys) for item in value]
        yield from (
            f"{path}: duplicate {', '.join(keys)}: {', '.join(map(str, key))}"
            for key in dict.fromkeys(given)
            if given.count(key) > 1
        )
    elif kind == "set":
        yield from (f"{path}: duplicate {item!r}" for item in value if value.count(item) > 1)


def _cel(schema: Schema, value: Any, path: str) -> Iterator[str]:
    """CEL rules, but those that compare with an earlier state. Nothing without cel-python."""
    rules = [rule for rule in schema.get("x-kubernetes-validations") or [] if "oldSelf" not in rule["rule"]]
    if not rules:
        return
    try:
        import celpy
        from celpy.adapter import json_to_cel
    except ImportError:
        return
    environment = celpy.Environment()
    for rule in rules:
        program = environment.program(environment.compile(rule["rule"]))
        try:
            holds = bool(program.evaluate({"self": json_to_cel(value)}))
        except celpy.CELEvalError as error:
            yield f"{path}: {rule['rule']}: {error}"
            continue
        if not holds:
            yield f"{path}: {rule.get('message') or rule['rule']}"
