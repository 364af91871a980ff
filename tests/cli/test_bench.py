"""`baton bench`: its documents, its tables, and what it refuses."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from bench.kv.concurrent import ConcurrentReport, ConcurrentRow
from bench.kv.links import LinkReport, LinksReport
from bench.kv.measure import KvReport, KvRow
from bench.paper import PaperReport
from bench.prefill import PrefillReport, PrefillRow
from cli.bench import prefill_table
from tests.support.command import Baton

TINY = ("bench", "kv", "--bytes", "2MB", "--runs", "1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--case", "pigeon"), "pigeon"),
        (("--bytes", "0"), "at least one byte"),
        (("--bytes", "-5"), "no size"),
        (("--bytes", "lots"), "no size"),
        (("--runs", "0"), "--runs"),
        (("--threads", "0"), "--threads"),
        (("--link", "0"), "above 0"),
        (("--link", "-30"), "above 0"),
        (("--link", "inf"), "above 0"),
        (("--link", "nan"), "above 0"),
        (("--link", "fast"), "no number"),
        (("--concurrent", "1"), "--concurrent"),
        (("--concurrent", "4", "--link", "30"), "one at a time"),
        (("--concurrent", "4", "--case", "tls", "--case", "baton"), "one case"),
    ],
)
def test_wrong_usage_of_kv(baton: Baton, arguments: tuple[str, ...], complaint: str) -> None:
    result = baton("bench", "kv", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tokens", "0"),
        ("--tokens", "-1000"),
        ("--tokens", "many"),
        ("--rounds", "0"),
        ("--link", "-3"),
        ("--link", "0"),
    ],
)
def test_wrong_usage_of_prefill(baton: Baton, arguments: tuple[str, ...]) -> None:
    result = baton("bench", "prefill", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


@pytest.mark.parametrize("command", [TINY, ("bench", "prefill")])
def test_a_link_needs_root(
    baton: Baton, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    result = baton(*command, "--link", "30")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "network namespaces need root" in result.stderr


ROW = KvRow(
    case="baton",
    mb_per_s=922.4,
    cpu_s_per_gb_send=0.984,
    cpu_s_per_gb_receive=0.971,
    bytes=2_000_027_648,
    runs=5,
    ratio=1.0,
    peak_growth_mb_send=0.7,
    peak_growth_mb_receive=43.2,
    mb_per_s_range=(900.0, 950.0),
)


def shown(baton: Baton, monkeypatch: pytest.MonkeyPatch, report: object, *words: str) -> str:
    """Return what is printed of a report that takes long to make."""
    for name in ("measure_kv", "measure_links", "measure_concurrent"):
        monkeypatch.setattr(f"cli.bench_kv.{name}", lambda *_, **__: report)
    return baton("bench", "kv", *words).stdout


def test_the_table_has_ratios(baton: Baton, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = msgspec.structs.replace(ROW, case="tls", mb_per_s=2346.0)
    text = shown(baton, monkeypatch, KvReport([ROW, tls], {"tls": 0.393}))
    for part in ("2000 MB of KV cache, medians of 5 runs", "922", "2346", "0.39x", "0.97", "43"):
        assert part in text


def test_the_table_of_a_link_has_shares(baton: Baton, monkeypatch: pytest.MonkeyPatch) -> None:
    report = LinksReport([LinkReport(600.0, [ROW], {"baton": 0.817})])
    text = shown(baton, monkeypatch, report, "--link", "600")
    assert "A link of 600 MB/s" in text
    assert "82%" in text


def test_the_table_of_several_at_once(baton: Baton, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [ConcurrentRow(200_000_000, 323.4, 0.052, 0.061, 0.98)] * 2
    report = ConcurrentReport("baton", 5, 857.0, 807.0, 0.944, rows)
    text = shown(baton, monkeypatch, report, "--concurrent", "2")
    for part in ("2 transfers at once", "52 ms", "61 ms", "0.98", "0.94 times"):
        assert part in text


@pytest.mark.parametrize("link", [None, 15.0])
def test_the_table_of_prefill(link: float | None) -> None:
    row = PrefillRow(
        prompt_tokens=7912,
        ttft_s=6.88,
        engine_prefill_s=5.55,
        decode_step_s=0.13,
        rest_s=0.17,
        transfer_s=6.65,
        hidden_fraction=0.97,
        bytes=182_269_440,
        raw_bytes=182_269_440,
        codec="raw",
        overhead=1.21,
        ideal_s=5.68,
        over_ideal=1.07,
    )
    printed = io.StringIO()
    report = PrefillReport("SmolLM2", 5, [row], link)
    Console(width=120, file=printed).print(prefill_table(report))
    text = printed.getvalue()
    for part in ("7912", "6.88 s", "5.55 s", "0.13 s", "1.21", "182.3", "97%"):
        assert part in text
    assert ("15 MB/s" in text) == ("1.07" in text) == (link is not None)


def test_paper_prints_a_table_or_one_json_document(baton: Baton) -> None:
    report = msgspec.json.decode(baton("bench", "paper", "--json").stdout, type=PaperReport)
    assert report.published.total_s == 2.32
    table = baton("bench", "paper").stdout
    assert "8192 tokens of Llama-3.1-8B" in table
    assert f"{report.rows[0].total_s:.2f} s" in table
    slow = baton("bench", "paper", "--goodput", "500", "--link", "100", "--json").stdout
    assert msgspec.json.decode(slow, type=PaperReport).rows[0].mb_per_s == 100


@pytest.mark.parametrize("option", ["--goodput", "--link"])
def test_paper_needs_rates(baton: Baton, option: str) -> None:
    result = baton("bench", "paper", option, "-1")
    assert result.exit_code == 2
    assert option in result.stderr


@pytest.mark.e2e
def test_kv_prints_one_json_document(baton: Baton) -> None:
    two = ("--case", "plain_tcp", "--case", "baton")
    report = msgspec.json.decode(baton(*TINY, *two, "--json").stdout, type=KvReport)
    assert [row.case for row in report.rows] == ["plain_tcp", "baton"]
    assert report.ratios.keys() == {"plain_tcp"}


@pytest.mark.e2e
def test_four_at_once_print_one_json_document(baton: Baton) -> None:
    result = baton("bench", "kv", "--bytes", "40MB", "--runs", "1", "--concurrent", "4", "--json")
    report = msgspec.json.decode(result.stdout, type=ConcurrentReport)
    assert [round(row.bytes / 1e6) for row in report.rows] == [16, 12, 8, 4]
    assert sum(row.share for row in report.rows) == pytest.approx(4, abs=0.01)
    assert report.ratio > 0


@pytest.mark.e2e
def test_a_shaped_link_is_not_exceeded(baton: Baton) -> None:
    result = baton("bench", "kv", "--bytes", "12MB", "--runs", "1", "--link", "20", "--json")
    if result.exit_code == 1 and "namespaces" in result.stderr:
        pytest.skip(result.stderr)
    (link,) = msgspec.json.decode(result.stdout, type=LinksReport).links
    assert link.link_mb_per_s == 20
    assert link.shares.keys() == {"baton", "baton_planes", "plain_tcp"}
    for case in ("baton", "plain_tcp"):
        assert 0.3 < link.shares[case] < 1.02
    assert link.shares["baton_planes"] > link.shares["baton"]
