"""Judges deploy/ with the tools of others: hadolint, Helm's own renderer and linter, and Kubernetes' schemas.

    make check-deploy

Fails unless the image is lint clean, the chart renders to the plain manifest by default, each of its values has an
effect or is refused, and all that it renders is valid.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
CHART = DEPLOY / "helm/pd-handoff"
MANIFEST = DEPLOY / "kubernetes/pd-handoff.yaml"
VERSIONS = ("1.28.0", "1.31.0", "1.34.0", "1.37.0")
OF_HELM = ("app.kubernetes.io/", "helm.sh/")
ELSEWHERE = {
    "image": {"repository": "registry.example/pd-handoff", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "slots": 12345678,
    "arena": {"sizeLimit": "3Gi"},
    "settings": {"lease_max": 120, "max_waiting_bytes": 1073741824, "admin_contents": True, "log_level": "debug"},
    "tls": {"secretName": "other-tls"},
    "roles": "prefill.example prefill *\n",
    "resources": {"limits": {"memory": "4Gi"}},
    "networkPolicy": {"enabled": True, "clientLabels": {"team": "inference"}, "metricsNamespace": "watch"},
    "podAnnotations": {"note": "here"},
    "terminationGracePeriodSeconds": 45,
    "nodeSelector": {"disk": "none"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
}
REFUSED: tuple[dict[str, Any], ...] = (
    {"slot": 1},
    {"slots": 0},
    {"slots": "many"},
    {"arena": {"sizeLimit": "1 GB"}},
    {"settings": {"--lease-max": 1}},
    {"networkPolicy": {"enable": False}},
)


def rendered(values: dict[str, Any], name: str = "pd-handoff") -> list[dict[str, Any]]:
    """The chart's documents. Raises HelmError for values that its schema refuses."""
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name=name, namespace="default")
    texts = [text for path, text in files.items() if path.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def without_labels_of_helm(value: Any) -> Any:
    """As a plain manifest says it: no labels that only Helm sets."""
    if isinstance(value, list):
        return [without_labels_of_helm(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: without_labels_of_helm(each) for key, each in value.items() if not str(key).startswith(OF_HELM)}
    return {key: each for key, each in kept.items() if key != "imagePullPolicy"}


def by_kind(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Labels of the objects themselves are left out; those of the pods count."""
    found = {document["kind"]: without_labels_of_helm(document) for document in documents}
    for document in found.values():
        document["metadata"].pop("labels", None)
    return found


def check_chart() -> None:
    """Raises AssertionError."""
    report = helm.lint(CHART, strict=True)
    faults = [each for each in report["messages"] if each["severity"] >= 2]  # 2: warning
    assert not faults, faults
    assert not report["errors"], report["errors"]
    plain = by_kind(list(yaml.safe_load_all(MANIFEST.read_text())))
    default = by_kind(rendered({}))
    assert default.keys() == plain.keys()
    for kind, document in plain.items():
        assert default[kind] == document, f"{kind} differs:\n{yaml.dump(default[kind])}\n{yaml.dump(document)}"
    own = yaml.safe_load((CHART / "values.yaml").read_text())
    assert own.keys() == ELSEWHERE.keys(), "ELSEWHERE has another value for each"
    for key, value in ELSEWHERE.items():
        assert by_kind(rendered({key: value})) != default or key == "image", f"{key} has no effect"
    full = rendered(ELSEWHERE, "another")
    (container,) = by_kind(full)["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert "--slots=12345678" in container["args"]
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "PD_HANDOFF_LEASE_MAX": "120",
        "PD_HANDOFF_MAX_WAITING_BYTES": "1073741824",
        "PD_HANDOFF_ADMIN_CONTENTS": "yes",
        "PD_HANDOFF_LOG_LEVEL": "debug",
    }
    assert container["image"] == "registry.example/pd-handoff:1"
    assert "NetworkPolicy" not in by_kind(rendered({"networkPolicy": {"enabled": False}}))
    for values in REFUSED:
        try:
            rendered(values)
        except helm.HelmError:
            continue
        raise AssertionError(f"{values} is taken")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rendered.yaml")
        path.write_text(yaml.dump_all([*rendered({}), *full]))
        for version in VERSIONS:
            run("kubernetes-validate", "--strict", "--quiet", "-k", version, str(path), str(MANIFEST))


def run(name: str, *arguments: str) -> None:
    """A tool of this environment. Raises CalledProcessError."""
    subprocess.run([str(Path(sys.executable).with_name(name)), *arguments], check=True)


if __name__ == "__main__":
    run("hadolint", str(DEPLOY / "docker/Dockerfile"))
    check_chart()
    print(f"deploy/ is in order: hadolint, Helm {helm.helm_sdk_version()}, Kubernetes {', '.join(VERSIONS)}")
