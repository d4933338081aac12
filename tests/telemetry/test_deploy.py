"""What lies in deploy/ fits what the store exports and takes."""

from __future__ import annotations

import argparse
import configparser
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from pd_handoff_server import config
from pd_handoff_server.arena.layout import Layout
from pd_handoff_server.handlers.status import CODES
from pd_handoff_server.healthcheck import main as probe
from pd_handoff_server.lifecycle import Policy
from pd_handoff_server.persistence import superblock
from pd_handoff_server.persistence.layout import Geometry
from pd_handoff_server.telemetry.metrics import CANCELLED, OK

from tests.support.fixtures import Start
from tests.support.waits import patient

from .conftest import Watched

DEPLOY = Path(__file__).parents[2] / "deploy"
LABELS = {
    "pd_handoff_attachment_heap_bytes": {"state"},
    "pd_handoff_heap_bytes": {"state"},
    "pd_handoff_info": {"version", "store_epoch", "schema_fingerprint"},
    "pd_handoff_slots": {"state"},
    "pd_handoff_waiters": {"kind"},
    "pd_handoff_ended": {"outcome", "state"},
    "pd_handoff_calls": {"method", "reason"},
    "pd_handoff_batch_items": {"method", "reason"},
    "pd_handoff_received_bytes": {"method"},
    "pd_handoff_sent_bytes": {"method"},
    "pd_handoff_call_seconds": {"method"},
}
SCRAPED = {"job", "instance"}
VALUES = {
    "state": {"free", "reserved", "published", "consumed", "quarantined", "none", "used", "in_use"},
    "outcome": {"completed", "aborted", "expired", "superseded", "restarted"},
    "reason": {OK, CANCELLED, *CODES},
}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "pd-handoff.json").read_text())
    return found


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in dashboard()["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for rule in alerts():
        yield rule["alert"], rule["expr"]


def family(name: str) -> str:
    return re.sub(r"_(total|bucket|count|sum)$", "", name)


@pytest.fixture
def exported(watched: Watched) -> set[str]:
    """Names of samples, with those that come only once something has happened."""
    steps = watched.store.steps()
    steps.exchange(1)
    steps.abort(2)
    names = {name for name, _ in watched.scrape()}
    return names | {"pd_handoff_batch_items_total"}


def test_dashboard_and_alerts_name_what_is_exported(exported: set[str]) -> None:
    named = set()
    for where, expression in expressions():
        for name in re.findall(r"\b(?:pd_handoff|process)_\w+", expression):
            assert name in exported, f"{where}: {name}"
            named.add(family(name))
        for name, selector in re.findall(r"\b(pd_handoff_\w+)\{(.*?)\}", expression):
            for label, operator, values in re.findall(r'(\w+)(=~|!=|!~|=)"(.*?)"', selector):
                assert label in LABELS.get(family(name), set()) | SCRAPED, f"{where}: {name} has no label {label}"
                if label in VALUES:
                    assert set(values.split("|")) <= VALUES[label], f"{where}: {label}{operator}{values}"
        grouped = {label for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(", ")}
        series = re.findall(r"\bpd_handoff_\w+", expression)
        known = set().union(SCRAPED, {"le"}, *(LABELS.get(family(name), set()) for name in series))
        assert grouped <= known, f"{where}: {grouped - known}"
    unseen = {family(name) for name in exported if name.startswith("pd_handoff_")} - named
    assert not unseen, f"on no panel and in no alert: {unseen}"


def test_labels_are_those_that_are_exported(watched: Watched) -> None:
    steps = watched.store.steps()
    steps.exchange(1)
    steps.abort(2)
    found: dict[str, set[str]] = {}
    for name, labels in watched.scrape():
        if name.startswith("pd_handoff_"):
            found.setdefault(family(name), set()).update(label for label, _ in labels if label != "le")
    assert {name: labels for name, labels in found.items() if labels} == {
        name: labels for name, labels in LABELS.items() if name in found
    }


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_alerts_say_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert len(rule["annotations"]["description"]) > 40
    tool = shutil.which("promtool")
    if tool:  # where Prometheus is installed, it has a say
        for arguments in (
            ("check", "rules", "alerts.yml"),
            ("check", "config", "--syntax-only", "scrape.yml"),
            ("test", "rules", "alerts_test.yml"),
        ):
            command = [tool, *arguments[:-1], str(DEPLOY / "prometheus" / arguments[-1])]
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(60))
            assert ended.returncode == 0, ended.stderr


def test_every_alert_has_its_section_of_the_runbook() -> None:
    text = (DEPLOY.parent / "docs" / "how-to" / "runbook.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"how-to/runbook.html#{rule['alert'].lower()}"
        assert "**Users notice**" in sections[rule["alert"]]
        assert len(sections[rule["alert"]]) > 200


def test_the_runbook_names_events_flags_and_series_that_there_are(exported: set[str]) -> None:
    text = (DEPLOY.parent / "docs" / "how-to" / "runbook.md").read_text()
    flags = {config.flag(spec.name) for spec in fields(config.Settings)}
    assert set(re.findall(r"`(--[\w-]+)`", text)) <= flags
    assert set(re.findall(r"`(pd_handoff_\w+)`", text)) <= exported
    events = (DEPLOY.parent / "docs" / "reference" / "log-events.md").read_text()
    for name in re.findall(r"events? `(\w+)`", text):
        assert f"`{name}`" in events, name


def test_the_page_on_deployment_says_what_the_unit_says() -> None:
    unit = (DEPLOY / "systemd" / "pd-handoff.service").read_text()
    page = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text()
    for name in ("LISTEN", "METRICS_LISTEN", "ARENA_FILE"):
        (value,) = re.findall(rf"^Environment=PD_HANDOFF_{name}=(\S+)$", unit, re.MULTILINE)
        assert f"`{value}`" in page, name
    (program,) = re.findall(r"^ExecStart=(\S+)/bin/pd-handoff serve$", unit, re.MULTILINE)
    assert f"`{program}`" in page
    (environment,) = re.findall(r"^EnvironmentFile=-(\S+)$", unit, re.MULTILINE)
    assert f"`{environment}`" in page
    (installed,) = re.findall(r"pd-handoff.sysusers.conf as (\S+),", unit)
    assert installed in page
    assert "`systemctl restart`" in page
    assert "RuntimeDirectoryPreserve=restart" in unit


def test_the_charts_values_are_used_and_no_others() -> None:
    chart = DEPLOY / "helm" / "pd-handoff"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    templates = "".join(path.read_text() for path in (chart / "templates").iterdir())
    used = {name.partition(".")[0] for name in re.findall(r"\.Values\.([\w.]+)", templates)}
    assert used == values.keys()
    schema = json.loads((chart / "values.schema.json").read_text())
    assert schema["properties"].keys() == values.keys() | {"global"}
    manifest = (DEPLOY / "kubernetes" / "pd-handoff.yaml").read_text()
    for argument in re.findall(r"^ +- (--[\w-]+=?)", manifest, re.MULTILINE):
        assert f"- {argument}" in templates, "`make check-deploy` compares all of it"


def test_the_page_on_upgrades_names_the_format_of_the_arena_file() -> None:
    page = (DEPLOY.parent / "docs" / "how-to" / "upgrade.md").read_text()
    assert f"names its format, now {superblock.VERSION}," in page


def test_every_alert_is_tried() -> None:
    tried = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())
    (trouble,) = [test for test in tried["tests"] if test["name"] == "a store that is in trouble"]
    rings = "".join(sample["labels"] for sample in trouble["promql_expr_test"][0]["exp_samples"])
    assert re.findall(r'alertname="(\w+)"', rings) == [rule["alert"] for rule in alerts()]


def settings_of(arguments: list[str], environment: dict[str, str]) -> config.Settings:
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    return config.load(vars(parser.parse_args(arguments)), environment)


def test_the_kubernetes_manifest_starts_a_store_that_asks_for_certificates() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "pd-handoff.yaml").read_text()))
    by_kind = {document["kind"]: document for document in documents}
    pod = by_kind["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][0] == "serve"
    settings = settings_of(container["args"][1:], {})
    assert settings.tls_client_ca
    assert settings.grace < pod["terminationGracePeriodSeconds"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for path in (settings.tls_cert, settings.tls_key, settings.tls_client_ca, settings.tls_roles):
        assert any(path.startswith(mount) for mount in mounts)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for probe_of, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert container[probe_of]["httpGet"] == {"path": path, "port": "metrics"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert str(ports["grpc"]) == settings.listen[0].rpartition(":")[2]
    assert str(ports["metrics"]) == settings.metrics_listen.rpartition(":")[2]


def size_of(quantity: str) -> int:
    """Bytes of a Kubernetes quantity."""
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", quantity).groups()  # type: ignore[union-attr]
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]


def arena_file_size(settings: config.Settings) -> int:
    """The most bytes that it may take."""
    return Geometry(
        Layout(settings.limits()), settings.slots, settings.tombstones, Policy(0, 0, 0, 0, 0, 0, 0).producers
    ).size


def test_the_manifests_arena_file_outlives_the_container_and_counts_as_its_memory() -> None:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "pd-handoff.yaml").read_text())
    (pod,) = (one["spec"]["template"]["spec"] for one in documents if one["kind"] == "StatefulSet")
    (container,) = pod["containers"]
    settings = settings_of(container["args"][1:], {})
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (volume,) = (one for one in pod["volumes"] if one["name"] == mounts[str(Path(settings.arena_file).parent)])
    assert volume["emptyDir"]["medium"] == "Memory"
    volume_size = size_of(volume["emptyDir"]["sizeLimit"])
    assert arena_file_size(settings) <= volume_size
    rest = (500 << 20) + settings.max_waiting_bytes
    assert size_of(container["resources"]["limits"]["memory"]) >= volume_size + rest
    assert size_of(container["resources"]["requests"]["memory"]) >= arena_file_size(settings) + (500 << 20)


def test_the_roles_of_the_manifest_are_read(tmp_path: Path) -> None:
    from pd_handoff_server.access.authorizer import AccessFile  # noqa: PLC0415

    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "pd-handoff.yaml").read_text())
    (roles,) = [document["data"]["roles"] for document in documents if document["kind"] == "ConfigMap"]
    path = tmp_path / "roles"
    path.write_text(roles)
    assert len(AccessFile(str(path), tokens=False).principals) == 3


def test_the_unit_starts_a_store() -> None:
    unit = configparser.RawConfigParser(strict=False, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    text = (DEPLOY / "systemd" / "pd-handoff.service").read_text()
    unit.read_string(text)
    environment = dict(line.split("=", 2)[1:] for line in text.splitlines() if line.startswith("Environment="))
    settings = settings_of([], environment)
    assert settings.listen == ("unix:/run/pd-handoff/socket",)
    assert settings.metrics_listen
    assert float(unit["Service"]["TimeoutStopSec"]) > settings.grace
    assert unit["Service"]["ExecStart"].endswith("pd-handoff serve")


def test_the_units_arena_file_outlives_the_process() -> None:
    text = (DEPLOY / "systemd" / "pd-handoff.service").read_text()
    service = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"(?!Environment)\w+=", line))
    environment = dict(line.split("=", 2)[1:] for line in text.splitlines() if line.startswith("Environment="))
    arena_file = Path(settings_of([], environment).arena_file)
    assert arena_file.parent == Path("/run", service["RuntimeDirectory"])
    assert service["RuntimeDirectoryPreserve"] == "restart"
    assert not {"DynamicUser", "RemoveIPC"} & service.keys()  # these delete what a user has in /dev/shm
    users = (DEPLOY / "systemd" / "pd-handoff.sysusers.conf").read_text()
    assert re.search(rf"^u {service['User']} - ", users, re.MULTILINE)
    assert service["Group"] == service["User"]


def test_the_containers_arena_file_outlives_it() -> None:
    text = (DEPLOY / "README.md").read_text()
    (example,) = re.findall(r"^```\n(install -d .+?)^```", text, re.MULTILINE | re.DOTALL)
    made, run = example.replace("\\\n", " ").strip().splitlines()
    host = made.split()[-1]
    assert re.search(rf"-o (\d+) -g \1 -m 0700 {host}$", made)
    assert host.startswith("/dev/shm/")
    (mounted,) = re.findall(rf"-v {host}:(\S+)", run)
    settings = settings_of([], dict(re.findall(r"-e (PD_HANDOFF_\w+)=(\S+)", run)))
    assert str(Path(settings.arena_file).parent) == mounted
    limit = size_of(re.findall(r"--memory (\S+)", run)[0].replace("g", "Gi"))
    assert limit >= arena_file_size(settings) + (500 << 20) + settings.max_waiting_bytes


def test_the_image_starts_a_store() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    environment = dict(re.findall(r"(PD_HANDOFF_\w+)=(\S+)", text))
    assert settings_of([], environment).listen == ("127.0.0.1:50071", "unix:/run/pd-handoff/socket")
    copied = {name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for name in line.split()}
    assert all((DEPLOY.parent / name).exists() for name in copied)
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    (wheel,) = re.findall(
        r"^\[tool\.hatch\.build\.targets\.wheel\.force-include\]\n((?:\".+\n)+)", project, re.MULTILINE
    )
    packed = {*re.findall(r'^"([\w-]+)/', wheel, re.MULTILINE), "clients", "service", "LICENSE", "README.md"}
    assert packed <= copied, "the wheel cannot be built without them"
    assert re.search(r"^USER 10001$", text, re.MULTILINE)


def test_the_probe(start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    store = start()
    assert probe([store.target]) == 0
    monkeypatch.setenv("PD_HANDOFF_LISTEN", f"0.0.0.0:1, {store.target}")
    assert probe([]) == 0
    assert capsys.readouterr().out.count("SERVING") == 2
    store.drain()
    assert probe([store.target]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err
