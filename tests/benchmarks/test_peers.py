"""The comparison with other job queues: catalogue, accounting of CPU, report, and our adapter."""

import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from benchmarks.peers import catalogue, charts, report, servers
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.launcher import Launcher, cpu_below_s, traced_times_s, wait_until
from benchmarks.peers.measurements import MEASUREMENTS, ONCE, QUICK_MEASUREMENTS, drain
from benchmarks.peers.session import ClientCalls, Session

REQUIREMENTS = Path(catalogue.__file__).with_name("requirements")
ENOUGH_S = 60.0
POOL = "longshore-pool-1x2"
# Uses a known amount of CPU, half of it in a child that ends, then writes a file and waits.
BUSY = """
import os, sys, time
def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
child = os.fork()
spend(0.1)
if not child:
    os._exit(0)
os.waitpid(child, 0)
open(sys.argv[1], "w").write(str(os.getpid()))
if sys.argv[2:]:
    import signal
    signal.pause()
"""
# Starts the program above as a daemon, and ends.
DAEMON = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", {BUSY!r}, *sys.argv[1:]], start_new_session=True)
"""


def _figures(peer: str, measurement: str, number: int = 1, **figures: float | None) -> str:
    row = {"round": number, "peer": peer, "measurement": measurement, "figures": figures}
    return json.dumps({"kind": "figures", "others": 0.25, **row})


def _results(*lines: str) -> report.Results:
    return report.Results(lines)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher() as started:
        yield started


class TestCatalogue:
    @pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
    def test_a_peer_has_an_adapter_and_measurements_that_exist(self, peer: Peer) -> None:
        adapter = Path(catalogue.__file__).parent / "adapters" / f"{peer.adapter}.py"

        assert adapter.exists()
        assert set(peer.measurements) <= set(MEASUREMENTS)
        assert peer.store in {"sqlite", *servers.SERVERS}

    @pytest.mark.parametrize("packages", sorted({peer.packages for peer in PEERS} - {""}))
    def test_every_package_of_a_peer_is_locked_with_a_hash(self, packages: str) -> None:
        text = (REQUIREMENTS / f"{packages}.txt").read_text(encoding="utf-8")

        requirements = re.split(r"\n(?=[a-z0-9])", text)

        assert "://" not in text
        assert [item for item in requirements if "--hash=sha256:" not in item] == []

    def test_names_are_unique_and_what_is_not_run_is_no_peer(self) -> None:
        names = [peer.name for peer in PEERS]

        assert len(names) == len(set(names))
        assert not catalogue.NOT_RUN.keys() & set(names)
        assert set(MEASUREMENTS) >= ONCE | QUICK_MEASUREMENTS

    def test_slots_are_an_option_or_more_commands(self) -> None:
        options = {"packages": "", "adapter": "a", "store": "sqlite", "command": ("{bin}/w",)}
        optional = Peer(name="optional", slotted=("-c", "{slots}"), usual=("-c", "7"), **options)
        single = Peer(name="single", **options)

        assert optional.workers("/bin", processes=2, slots=4) == [["/bin/w", "-c", "4"]] * 2
        assert optional.workers("/bin") == [["/bin/w", "-c", "7"]] * optional.processes
        assert single.workers("/bin", processes=2, slots=4) == [["/bin/w"]] * 8


class TestLauncher:
    def test_cpu_of_a_process_and_its_ended_child_is_counted(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        before_s = cpu_below_s()

        process = launcher.start(
            [sys.executable, "-c", BUSY, str(tmp_path / "done")],
            environment=os.environ,  # noqa: TID251 - the child needs PATH
            folder=tmp_path,
            log=tmp_path / "log",
        )
        process.wait(ENOUGH_S)

        assert process.exit_code == 0, process.log_tail()
        assert cpu_below_s() - before_s >= 0.18  # in ticks of 10 ms

    def test_an_orphan_is_counted_and_ends_with_the_block(self, tmp_path: Path) -> None:
        done = tmp_path / "done"
        with Launcher() as launcher:
            before_s = cpu_below_s()
            process = launcher.start(
                [sys.executable, "-c", DAEMON, str(done), "waits"],
                environment=os.environ,  # noqa: TID251 - the child needs PATH
                folder=tmp_path,
                log=tmp_path / "log",
            )
            assert wait_until(lambda: done.exists() and done.read_text(), ENOUGH_S)
            orphan = Path(f"/proc/{done.read_text()}")
            process.wait(ENOUGH_S)

            assert cpu_below_s() - before_s >= 0.18
            assert orphan.exists()

        assert not orphan.exists()

    def test_calls_are_read_from_a_trace_with_and_without_process_ids(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        trace.write_text(
            "12 1700000000.250000 fdatasync(3) = 0\n"
            "1700000000.500000 fsync(4 <unfinished ...>\n"
            "12 1700000000.600000 <... fsync resumed>) = 0\n"
            "12 1700000000.700000 +++ exited with 0 +++\n"
        )

        assert traced_times_s(trace) == [1700000000.25, 1700000000.5]

    def test_a_sync_counts_for_the_call_in_which_it_happened(self) -> None:
        calls = ClientCalls(
            before=[1.0, 2.0], after=[1.5, 2.5], cpu_s=0.0, wall_offset_s=100.0, value=None
        )

        assert calls.counts_inside([101.1, 101.2, 101.7, 102.6]) == [2, 0]


class TestServers:
    def test_a_program_is_taken_from_the_folder_of_its_setting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = tmp_path / "bench-server"
        program.touch(mode=0o755)
        monkeypatch.setenv("BENCH_SERVER_BIN", str(tmp_path))

        assert servers.find_program("bench-server", "BENCH_SERVER_BIN") == str(program)

    def test_a_missing_program_is_the_reason_why_a_peer_is_not_run(self) -> None:
        with pytest.raises(servers.NotAvailable, match=r"bench-server.*BENCH_SERVER_BIN"):
            servers.find_program("bench-server", "BENCH_SERVER_BIN")


class TestReport:
    def test_a_ratio_is_that_of_the_medians(self) -> None:
        lines = [
            _figures(peer, "throughput", number, tasks_per_s=value)
            for peer, values in {POOL: (10, 300, 20), "pgqueuer": (40, 5, 900)}.items()
            for number, value in enumerate(values)
        ]

        compared = report.ratio(_results(*lines), report.COMPARISONS[0])

        assert compared == (20, "pgqueuer", 40)

    def test_the_best_of_several_peers_is_compared(self) -> None:
        results = _results(
            _figures("huey", "latency", p50_ms=30.0),
            _figures("pgqueuer", "latency", p50_ms=3.0),
            _figures("celery", "latency", p50_ms=1.0),
        )
        peers = ["huey", "pgqueuer", "rq-fork"]

        assert results.best(peers, "latency", "p50_ms", more_is_better=False) == ("pgqueuer", 3.0)
        assert results.best(peers, "latency", "p50_ms", more_is_better=True) == ("huey", 30.0)
        assert results.best(["rq-fork"], "latency", "p50_ms", more_is_better=True) is None

    def test_submits_are_compared_with_disk_durable_peers_only(self) -> None:
        results = _results(
            _figures(POOL, "throughput", submit_per_s=100.0),
            _figures("huey", "durability", durable=True, syncs_per_submit=1.0),
            _figures("huey", "throughput", submit_per_s=200.0),
            _figures("litequeue", "durability", durable=False, syncs_per_submit=0.0),
            _figures("litequeue", "throughput", submit_per_s=9_000.0),
        )
        submits = next(item for item in report.COMPARISONS if item.figure == "submit_per_s")

        assert report.ratio(results, submits) == (100.0, "huey", 200.0)
        assert "| Submits per second | more | 100 | huey | 200 | 0.50 |" in _page(results)

    def test_the_page_has_spreads_durability_versions_and_what_was_not_run(self) -> None:
        run = {"machine": {"cores": "2"}, "versions": {"huey": "huey 3"}, "rounds": 2}
        failure = {"round": 1, "peer": "huey", "measurement": "kill", "error": "it hung"}
        page = _page(
            _results(
                json.dumps({"kind": "run", **run}),
                json.dumps({"kind": "not_run", "peer": "honker", "reason": "no wheel"}),
                json.dumps({"kind": "failed", **failure}),
                _figures("huey", "durability", durable=True, syncs_per_submit=1.5),
                _figures("huey", "latency", 1, p50_ms=20.0, p99_ms=40.0, missing=0),
                _figures("huey", "latency", 2, p50_ms=30.0, p99_ms=40.0, missing=0),
            )
        )

        assert "| huey | huey 3 | sqlite | yes | 1.50 |" in page
        assert "| huey | 25 (20–30) | 40 | 0 |" in page
        assert "- honker: no wheel" in page
        assert "- huey, kill, round 1: it hung" in page
        assert "other programs used up to 25 % of the CPU" in page

    def test_figures_that_could_not_be_measured_are_left_out(self) -> None:
        page = _page(_results(_figures("huey", "throughput", tasks_per_s=9.0, cpu_ms=None)))

        assert "| huey | – | – | 9 | – | – | – |" in page
        assert "### Bulk submit" not in page

    def test_every_comparison_table_and_chart_is_of_a_figure_that_is_measured(self) -> None:
        tables = {measurement: set(figures) for _, measurement, figures in report.TABLES}

        for item in (*report.COMPARISONS, *report.CHARTS):
            assert item.figure in tables[item.measurement]
        assert set(tables) | {"durability"} == set(MEASUREMENTS)

    def test_the_report_is_written_with_its_charts(self, tmp_path: Path) -> None:
        results = _results(
            _figures(POOL, "throughput", tasks_per_s=50.0),
            _figures("huey", "throughput", tasks_per_s=100.0),
        )

        report.write_report(results, tmp_path / "RESULTS.md", tmp_path / "results")

        page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
        for chart in report.CHARTS:
            assert f"(results/{chart.file})" in page
            ET.fromstring((tmp_path / "results" / chart.file).read_text(encoding="utf-8"))  # noqa: S314 - our own

    def test_a_chart_has_the_best_first_and_proportional_bars(self) -> None:
        results = _results(
            _figures(POOL, "throughput", tasks_per_s=50.0),
            _figures("huey", "throughput", tasks_per_s=100.0),
        )

        text = report.chart_of(results, report.CHARTS[0])

        assert text.index(">huey<") < text.index(f">{POOL}<")
        bars = re.findall(r'class="(\w+)" .* width="([\d.]+)"', text)
        (first, longest), (second, shortest) = bars
        assert (first, second) == ("bar", "ours")
        assert float(longest) == pytest.approx(2 * float(shortest))
        assert "prefers-color-scheme: dark" in text

    def test_text_in_a_chart_is_escaped(self) -> None:
        bars = [charts.Bar(label="a<b", value=1.0, ours=False)]

        text = charts.bar_chart('"a" & b', "c < d", bars)

        assert ET.fromstring(text).get("aria-label") == '"a" & b'  # noqa: S314 - our own

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (12345.6, "12,346"),
            (123.4, "123"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.0123, "0.012"),
            (7.0, "7"),
        ],
    )
    def test_a_number_has_about_three_digits(self, value: float, text: str) -> None:
        assert charts.number(value) == text


def _page(results: report.Results) -> str:
    return report.markdown(results, "results")


@pytest.fixture
def session(launcher: Launcher, tmp_path: Path) -> Session:
    return Session(
        next(peer for peer in PEERS if peer.name == POOL),
        launcher=launcher,
        folder=tmp_path / "session",
        programs=Path(sys.executable).parent,
        server=None,
    )


def test_the_size_of_a_sqlite_file_does_not_include_its_log(session: Session) -> None:
    file = Path(session.environment()["BENCH_DATABASE"])
    connection = apsw.Connection(str(file))
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute("CREATE TABLE rows (body)")
    connection.execute("INSERT INTO rows VALUES (zeroblob(100000))")
    log = file.with_name(f"{file.name}-wal")
    assert log.stat().st_size > 100_000

    size = session.disk_bytes()

    assert log.stat().st_size == 0
    assert size is not None
    assert size >= file.stat().st_size > 100_000


def test_the_longshore_adapter_runs_tasks_end_to_end(session: Session) -> None:
    session.call("install")
    single = session.submit(10)
    session.call("submit_bulk", count=10, first=10)

    figures = drain(session, 20, ENOUGH_S)

    assert len(single.before) == len(single.after) == 10
    assert sorted(item.number for item in session.records()) == list(range(20))
    assert figures["missing"] == 0
    assert session.disk_bytes()
