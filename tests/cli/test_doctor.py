"""Checks one by one, on things that the test made well or unwell; and the whole once."""

from __future__ import annotations

import fcntl
import json
import socket
from ipaddress import ip_interface
from pathlib import Path

import msgspec
import pytest

from cli.checks.network import check_multicast, check_network, check_port
from cli.checks.software import ENGINE_PROBES, check_engine, check_packages, check_python
from cli.checks.storage import check_data_dir, check_disk, check_models
from node.config import NodeConfig
from node.interfaces import Interface
from tests.support.command import Baton

LO = Interface("lo", "loopback", (ip_interface("127.0.0.1/8"),))


def probe(program: str, module: str = "json", timeout_s: float = 30):
    return msgspec.structs.replace(
        ENGINE_PROBES[0], program=program, modules=(module,), timeout_s=timeout_s
    )


def test_python_and_packages() -> None:
    assert check_python().status == "ok"
    assert check_packages().status == "ok"


def test_engine_that_imports() -> None:
    check = check_engine(probe("print('noise'); print('lib 1 on cpu')"))
    assert (check.status, check.detail) == ("ok", "lib 1 on cpu")


@pytest.mark.parametrize(
    ("broken", "status", "detail"),
    [
        (probe("", module="no_such_module"), "warn", "not installed"),
        (probe("raise ImportError('libcuda.so.1 is missing')"), "fail", "libcuda.so.1 is missing"),
        (probe("import os; os.abort()"), "fail", "ended with status -6"),
        (probe("import time; time.sleep(60)", timeout_s=0.5), "fail", "longer than"),
    ],
)
def test_engine_that_does_not(broken, status: str, detail: str) -> None:
    check = check_engine(broken)
    assert check.status == status
    assert detail in check.detail
    assert check.remedy


def test_data_directory(tmp_path: Path) -> None:
    missing = tmp_path / "a" / "b"
    assert "made at the first start" in check_data_dir(missing).detail
    assert not missing.exists()
    assert "free" in check_data_dir(tmp_path).detail
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "used by a running node" in check_data_dir(tmp_path).detail
    occupied = tmp_path / "file"
    occupied.write_text("")
    assert check_data_dir(occupied / "data").status == "fail"


def test_disk_and_models(tmp_path: Path) -> None:
    assert "GB free" in check_disk(tmp_path / "models").detail
    empty = check_models(tmp_path)
    assert (empty.status, "baton models add" in empty.remedy) == ("warn", True)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    assert "tiny" in check_models(tmp_path).detail


def test_multicast() -> None:
    assert check_multicast(LO).status == "ok"
    elsewhere = Interface("nowhere0", "ethernet", (ip_interface("192.0.2.1/24"),))
    assert check_multicast(elsewhere).status == "warn"


def test_port_free_and_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        check = check_port("api port", "127.0.0.1", port, "--api HOST:PORT")
        assert (check.status, check.remedy) == ("fail", "choose another with --api HOST:PORT")
    assert check_port("api port", "127.0.0.1", port, "--api HOST:PORT").status == "ok"
    assert check_port("api port", "192.0.2.1", port, "--api HOST:PORT").status == "fail"


def test_port_of_a_running_node(api: str) -> None:
    host, _, port = api.partition(":")
    check = check_port("api port", host, int(port), "--api HOST:PORT")
    assert check.status == "ok"
    assert "answers already" in check.detail


def test_interfaces(tmp_path: Path) -> None:
    config = NodeConfig(interfaces=("lo",), data_dir=tmp_path, models_dir=tmp_path, api_port=0)
    names = [check.name for check in check_network(config)]
    assert names == ["interface lo", "multicast lo", "api port"]
    unknown = msgspec.structs.replace(config, interfaces=("nowhere0",))
    first = next(iter(check_network(unknown)))
    assert (first.name, first.status) == ("interfaces", "fail")
    assert "nowhere0" in first.detail


@pytest.mark.engine
def test_whole(baton: Baton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_INTERFACES", "lo")
    monkeypatch.setenv("BATON_API", "127.0.0.1:0")
    result = baton("doctor", "--json")
    report = json.loads(result.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert result.exit_code == 0, report
    assert report["ok"]
    assert "vLLM" in checks["vllm"]["detail"]
    assert "mlx-lm" in checks["mlx"]["detail"]


def test_table_and_exit_code(baton: Baton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.doctor.ENGINE_PROBES", ())
    monkeypatch.setenv("BATON_INTERFACES", "lo")
    monkeypatch.setenv("BATON_API", "127.0.0.1:0")
    well = baton("doctor")
    assert well.exit_code == 0
    assert "loopback: 127.0.0.1" in well.stdout
    monkeypatch.delenv("BATON_INTERFACES")
    named = baton("doctor", "--interface", "lo", "--json")
    checked = [each["name"] for each in json.loads(named.stdout)["checks"]]
    assert [name for name in checked if "interface" in name] == ["interface lo"]
    unknown = baton("doctor", "--interface", "lo", "--interface", "no-such", "--json")
    assert unknown.exit_code == 1
    assert "no-such" in unknown.stdout
    monkeypatch.setenv("BATON_INTERFACES", "lo")
    monkeypatch.setenv("BATON_ROLE", "boss")
    broken = baton("doctor")
    assert broken.exit_code == 1
    assert "boss" in broken.stdout
