"""What Longshore costs when nothing happens: an idle worker, and a question to the command line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks import worker_process
from benchmarks.children import BARE_PYTHON
from benchmarks.figures import Figure, under
from benchmarks.harness import scratch
from benchmarks.scale import Scale

RSS_MB = 60.0
HELP_CPU_S = 0.2
_SETTLE_S = 2.0
_NS_PER_S = 1_000_000_000


def measure(scale: Scale) -> Iterator[Figure]:
    """The worker first, then the command line."""
    if Path("/proc/self/schedstat").exists():
        yield from _idle_worker(scale.idle_s)
    else:
        yield Figure(name="footprint.rss", unit="MB", value=None, note="needs Linux's /proc")
    yield _help(scale.starts)


def _idle_worker(watched_s: float) -> Iterator[Figure]:
    with scratch() as folder, worker_process.run_worker_process(folder) as process_id:
        time.sleep(min(_SETTLE_S, watched_s))
        cpu_s, wakes = _cpu_s(process_id), _wakes(process_id)
        time.sleep(watched_s)
        cpu_s, wakes = _cpu_s(process_id) - cpu_s, _wakes(process_id) - wakes
        rss = _status(Path(f"/proc/{process_id}"), "VmRSS") / 1024
    note = "longshore worker" if worker_process.worker_program() else "a script, same wiring"
    target = under(RSS_MB, rss, "MB")
    yield Figure(name="footprint.rss", unit="MB", value=rss, target=target, note=note)
    yield Figure(
        name="footprint.idle_cpu",
        unit="ms/s",
        value=1000 * cpu_s / watched_s,
        details={"watched_s": watched_s, "wakes_per_s": wakes / watched_s},
    )


def _threads(process_id: int) -> list[Path]:
    return list(Path(f"/proc/{process_id}/task").iterdir())


def _cpu_s(process_id: int) -> float:
    threads = _threads(process_id)
    ran_ns = (int((thread / "schedstat").read_text().split()[0]) for thread in threads)
    return sum(ran_ns) / _NS_PER_S


def _wakes(process_id: int) -> int:
    return sum(_status(thread, "voluntary_ctxt_switches") for thread in _threads(process_id))


def _status(folder: Path, name: str) -> int:
    lines = (folder / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _help(starts: int) -> Figure:
    program = worker_process.command_line("main")
    if program is None:
        note = "there is no command line yet"
        return Figure(name="footprint.help_cpu", unit="s", value=None, note=note)
    rounds = [(_cpu_of(BARE_PYTHON), _cpu_of((program, "--help"))) for _ in range(starts)]
    spent = [ours for _, ours in rounds]
    return Figure(
        name="footprint.help_cpu",
        unit="s",
        value=median(spent),
        spread=(min(spent), max(spent)),
        floor=median(floor for floor, _ in rounds),
        target=under(HELP_CPU_S, median(spent), "s of CPU"),
        note=f"the floor is {Path(sys.executable).name} that does nothing",
    )


def _cpu_of(argv: Sequence[str]) -> float:
    environment = worker_process.clean_environment()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{argv} ended with {process.returncode}"
    return used.ru_utime + used.ru_stime
