"""How a store starts, or refuses to: NOT_SERVING first, loudly when its place is taken or a setting is wrong."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pd_handoff_server.transport.addresses import AddressError, Places

from tests.support import records
from tests.support.fixtures import Launch, Start
from tests.support.local import transports
from tests.support.process import NOT_SERVING, SERVING, run_serve

pytestmark = pytest.mark.internals

EXIT_FAILED, EXIT_USAGE = 1, 2


def refusals(log: str) -> list[str]:
    """What a store that refused to start said, from its JSON log, in which nothing else may stand."""
    events = [json.loads(line) for line in log.splitlines()]
    return [event["error"] for event in events if event["event"] == "refused_to_start"]


def chosen(transport: str) -> list[str]:
    """The flag of a transport."""
    return ["--transport", transport] if len(transports()) > 1 else []


def test_case_19_not_serving_then_serving_then_not_serving(launch: Launch) -> None:
    store = launch(wait=False, grace=2, fresh=True)
    statuses: list[int] = []
    for status in store.watch():
        statuses.append(status)
        if status == SERVING:
            assert store.steps().exchange(7) == records.full()
            store.signal()
    assert statuses == [NOT_SERVING, SERVING, NOT_SERVING]
    assert store.exit_code() == 0


def test_a_second_store_on_the_same_port_fails_loudly(start: Start, transport: str) -> None:
    first = start(listen=("127.0.0.1:0",))
    second = run_serve("--listen", first.target, "--log-format", "json", *chosen(transport), fresh=True)
    assert second.returncode == EXIT_FAILED
    (message,) = refusals(second.stderr)
    assert first.target in message
    assert "in use" in message
    for _ in range(20):  # and the first one alone answers there
        assert first.steps().exchange(7) == records.full()
        first.steps().release(7, token=first.steps().reserve(7).token)
        first.advance(121)


def test_a_second_store_on_the_same_unix_socket_fails_loudly(start: Start, transport: str) -> None:
    first = start()
    second = run_serve("--listen", first.target, "--log-format", "json", *chosen(transport))
    assert second.returncode == EXIT_FAILED
    (message,) = refusals(second.stderr)
    assert first.target.removeprefix("unix:") in message
    assert "another store" in message
    assert first.steps().exchange(7) == records.full()


def test_a_second_store_behind_a_link_to_the_first_ones_socket_fails_loudly(
    start: Start, transport: str, tmp_path: Path
) -> None:
    first = start()
    path = first.target.removeprefix("unix:")
    link = tmp_path / "link"
    link.symlink_to(path)
    second = run_serve("--listen", f"unix:{link}", "--log-format", "json", *chosen(transport))
    assert second.returncode == EXIT_FAILED
    assert refusals(second.stderr) == [f"{link} is a symbolic link; give the path that it leads to, {path}"]
    assert first.steps().exchange(7) == records.full()


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something else than a store holds."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_port_of_another_program(taken: int) -> None:
    run = run_serve("--listen", f"127.0.0.1:{taken}", "--log-format", "json")
    assert run.returncode == EXIT_FAILED
    (message,) = refusals(run.stderr)
    assert f"127.0.0.1:{taken}" in message


def loopbacks() -> list[str]:
    """The addresses of `localhost` that this machine has."""
    found = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as trial:
        trial.bind(("::1", 0))
        found.append("::1")
    return found


@pytest.mark.parametrize("host", loopbacks())
def test_half_of_a_name_is_not_enough(host: str, transport: str) -> None:
    """Else callers of the name would reach this store or another, by the order in which they try its addresses."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        other.bind((host, 0))
        other.listen()
        port = other.getsockname()[1]
        run = run_serve("--listen", f"localhost:{port}", "--log-format", "json", *chosen(transport))
    assert run.returncode == EXIT_FAILED
    (message,) = refusals(run.stderr)
    for part in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "in use", "another --listen"):
        assert part in message


def test_all_of_a_name_is_served_on_one_port(start: Start) -> None:
    store = start(listen=("localhost:0",))
    (address,) = store.addresses
    host, _, port = address.rpartition(":")
    assert host == "localhost"
    for host in loopbacks():
        socket.create_connection((host, int(port)), 20).close()
    assert store.steps().exchange(7) == records.full()


def test_all_of_ipv6_is_not_had_beside_a_part_of_it(transport: str) -> None:
    host = loopbacks()[-1]
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        other.bind((host, 0))
        other.listen()
        address = f"[::]:{other.getsockname()[1]}"
        run = run_serve("--listen", address, "--insecure", "--log-format", "json", *chosen(transport))
    assert run.returncode == EXIT_FAILED
    assert f"{address} is in use" in refusals(run.stderr)[0]


@pytest.mark.wire
def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(AddressError, match=r"^cannot serve store.example: Name or service not known; .* in numbers$"):
        Places("store.example:50071")


@pytest.mark.parametrize("what", ["a file", "no directory"])
def test_a_socket_path_that_cannot_be_served(tmp_path: Path, what: str) -> None:
    path = tmp_path / "place"
    if what == "a file":
        path.write_text("precious")
    else:
        path = path / "s"
    run = run_serve("--listen", f"unix:{path}", "--log-format", "json")
    assert run.returncode == EXIT_FAILED
    (message,) = refusals(run.stderr)
    assert str(path) in message
    if what == "a file":
        assert path.read_text() == "precious"


def test_the_longest_socket_path_is_served_and_a_longer_one_refused(launch: Launch, tmp_path: Path) -> None:
    longest = f"unix:{tmp_path}/".ljust(len("unix:") + 107, "s")
    run = run_serve("--listen", longest + "s")
    assert run.returncode == EXIT_USAGE
    assert run.stderr == (
        f"pd-handoff serve: --listen {longest}s is too long: the path of a Unix socket has at most 107 bytes, and "
        "this one 108; choose a shorter one\n"
    )
    assert launch(longest).steps().exchange(7) == records.full()


def test_a_bad_flag_is_refused_with_its_name() -> None:
    run = run_serve("--max-top-logprobs", "many")
    assert run.returncode == EXIT_USAGE
    assert "--max-top-logprobs" in run.stderr
    assert "'many'" in run.stderr


def test_a_bad_variable_is_refused_with_its_name() -> None:
    run = run_serve(environment={"PD_HANDOFF_SLOTS": "0"})
    assert run.returncode == EXIT_USAGE
    assert "PD_HANDOFF_SLOTS" in run.stderr


def test_settings_that_contradict_each_other() -> None:
    run = run_serve("--lease-min", "10", "--lease-default", "5")
    assert run.returncode == EXIT_USAGE
    for name in ("--lease-default", "--lease-min", "--lease-max"):
        assert name in run.stderr


def test_an_unknown_flag() -> None:
    run = run_serve("--slotz", "4")
    assert run.returncode == EXIT_USAGE
    assert "--slotz" in run.stderr


def test_an_arena_that_does_not_fit_shows_the_arithmetic(tmp_path: Path) -> None:
    run = run_serve("--listen", f"unix:{tmp_path / 's'}", "--slots", "16000000", "--log-format", "json")
    assert run.returncode == EXIT_FAILED
    (message,) = refusals(run.stderr)
    for part in ("16,000,000 slots", "bytes a row", "available", "--slots"):
        assert part in message


def test_rows_too_wide_for_a_batch_of_them_to_fit_into_a_message() -> None:
    run = run_serve("--max-hidden-state-bytes", "64MiB")
    assert run.returncode == EXIT_USAGE
    assert "--max-batch" in run.stderr
    assert "Traceback" not in run.stderr


def test_settings_from_flag_environment_and_default(launch: Launch) -> None:
    store = launch(
        "127.0.0.1:0",
        slots=5,
        max_top_logprobs=7,
        lease_default="2.5",
        environment={"PD_HANDOFF_SLOTS": "6", "PD_HANDOFF_MAX_TOKENS": "3", "PD_HANDOFF_RETENTION": "12.5"},
    )
    assert not store.target.endswith(":0")  # the port that was chosen is told
    (serving,) = [event for event in store.events if event["event"] == "serving"]
    assert serving["addresses"] == [store.target]
    assert serving["slots"] == 5
    facts = store.steps().capabilities()
    assert facts.slots_total == 5  # a flag goes before a variable
    assert facts.limits.top_logprobs == 7
    assert facts.limits.tokens == 3
    assert facts.limits.sampling_mask_tokens == 1024
    assert facts.lease_default.ToTimedelta().total_seconds() == 2.5
    assert facts.retention.ToTimedelta().total_seconds() == 12.5
