"""``python -m benchmarks.peers``: install the peers, measure them in turns, write the report."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.machine import busy_s, machine
from benchmarks.peers.catalogue import NOT_RUN, PEERS, Peer
from benchmarks.peers.launcher import Launcher, MeasurementFailed, cpu_below_s
from benchmarks.peers.measurements import FULL, MEASUREMENTS, ONCE, QUICK, QUICK_MEASUREMENTS, Sizes
from benchmarks.peers.report import Results, write_report
from benchmarks.peers.servers import SERVERS, NotAvailable, Server
from benchmarks.peers.session import ROOT, Session

_LOCKS = Path(__file__).with_name("requirements")
_OWN_PROGRAMS = Path(sys.executable).parent
_ERROR_LENGTH, _ERROR_HEAD, _REASON_LENGTH = 300, 80, 160


def install(peer: Peer) -> Path:
    """The folder of a peer's programs; its locked packages are installed if they are not.

    Raises:
        NotAvailable: they cannot be installed here.
    """
    if not peer.packages:
        return _OWN_PROGRAMS
    environment, lock = ROOT / ".venv" / "peers" / peer.packages, _LOCKS / f"{peer.packages}.txt"
    stamp = environment / "installed.txt"
    if stamp.exists() and stamp.read_text() == lock.read_text():
        return environment / "bin"
    uv, python = str(_OWN_PROGRAMS / "uv"), str(environment / "bin" / "python")
    locked = ["--require-hashes", "-r", str(lock)]
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)],
        [uv, "pip", "install", "--quiet", "--python", python, *locked],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            reason = " ".join(ran.stderr.split())
            message = f"its packages cannot be installed: {reason[:_REASON_LENGTH]}…"
            raise NotAvailable(message)
    shutil.copyfile(lock, stamp)
    return environment / "bin"


def locked_version(peer: Peer) -> str:
    """The version of a peer: the first package of its requirements."""
    if not peer.packages:
        return f"longshore {version('longshore')}"
    text = (_LOCKS / f"{peer.packages}.in").read_text()
    match = re.search(r"^([\w-]+)(?:\[.*\])?==(\S+)", text, re.MULTILINE)
    assert match, f"{peer.packages}.in pins nothing"
    return f"{match[1]} {match[2]}"


class Run:
    """Rounds of all peers; every result is appended to a file of JSON lines at once."""

    def __init__(self, launcher: Launcher, folder: Path, lines: Path, sizes: Sizes) -> None:
        self._launcher = launcher
        self._folder = folder
        self._lines = lines
        self._sizes = sizes
        self._servers: dict[str, Server] = {}

    def available(self, peers: Sequence[Peer]) -> dict[str, Path]:
        """The folders of programs of all peers that can be run here, by peer."""
        result = {}
        for peer in peers:
            try:
                result[peer.name] = install(peer)
                if peer.store in SERVERS and peer.store not in self._servers:
                    created = SERVERS[peer.store](self._launcher, self._folder)
                    created.program()
                    self._servers[peer.store] = created
            except NotAvailable as error:
                result.pop(peer.name, None)
                self.emit(kind="not_run", peer=peer.name, reason=str(error))
        return result

    def measure(
        self, peers: Sequence[Peer], programs: dict[str, Path], chosen: Sequence[str]
    ) -> None:
        """All rounds."""
        for number in range(1, self._sizes.rounds + 1):
            for peer in peers:
                if peer.name not in programs:
                    continue
                for measurement in _measurements(peer, self._sizes, chosen):
                    if number == 1 or measurement not in ONCE:
                        self._measure(number, peer, measurement, programs[peer.name])

    def _measure(self, number: int, peer: Peer, measurement: str, programs: Path) -> None:
        print(f"round {number}: {peer.name} {measurement}", file=sys.stderr, flush=True)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        row: dict[str, Any] = {"round": number, "peer": peer.name, "measurement": measurement}
        busy, ours, began = busy_s() or 0.0, _own_cpu_s(), time.monotonic()
        try:
            session = Session(
                peer,
                launcher=self._launcher,
                folder=folder,
                programs=programs,
                server=self._empty_server(peer),
            )
            session.call("install")
            figures = MEASUREMENTS[measurement](session, self._sizes)
        except (MeasurementFailed, subprocess.CalledProcessError) as error:
            text = " ".join(str(error).replace(f"{ROOT}/", "").split())
            if len(text) > _ERROR_LENGTH:
                text = f"{text[:_ERROR_HEAD]} … {text[_ERROR_HEAD - _ERROR_LENGTH :]}"
            self.emit(kind="failed", **row, error=text)
        else:
            others_s = (busy_s() or 0.0) - busy - (_own_cpu_s() - ours)
            share = others_s / ((time.monotonic() - began) * (os.cpu_count() or 1))
            self.emit(kind="figures", **row, figures=figures, others=min(1.0, max(0.0, share)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _empty_server(self, peer: Peer) -> Server | None:
        """The server that the peer needs, without data; the others are stopped."""
        for name, server in self._servers.items():
            if name != peer.store:
                server.stop()
        if peer.store not in self._servers:
            return None
        self._servers[peer.store].reset()
        return self._servers[peer.store]

    def server_versions(self) -> dict[str, str]:
        return {name: server.version() for name, server in self._servers.items()}

    def emit(self, **row: Any) -> None:
        """Append one line to the results."""
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _own_cpu_s() -> float:
    return cpu_below_s() + sum(os.times()[:2])


def _measurements(peer: Peer, sizes: Sizes, chosen: Sequence[str]) -> Iterator[str]:
    selected = set(chosen).intersection(MEASUREMENTS)
    if not selected:
        is_short = sizes.is_quick and peer != PEERS[0]
        selected = set(QUICK_MEASUREMENTS if is_short else MEASUREMENTS)
    return (name for name in MEASUREMENTS if name in selected and name in peer.measurements)


def main() -> None:
    """Measure, or only write the report."""
    options = _parser().parse_args()
    page, folder = options.out / "RESULTS.md", options.out / "results"
    lines = folder / "peers.jsonl"
    if not options.report:
        _run(options, lines)
    write_report(Results(lines.read_text(encoding="utf-8").splitlines()), page, folder)
    print(f"wrote {page}")


def _run(options: argparse.Namespace, lines: Path) -> None:
    chosen = options.only.split(",") if options.only else []
    names = {peer.name for peer in PEERS}
    if unknown := [name for name in chosen if name not in names and name not in MEASUREMENTS]:
        sys.exit(f"neither a peer nor a measurement: {', '.join(unknown)}")
    peers = [peer for peer in PEERS if peer.name in chosen or not names.intersection(chosen)]
    sizes = QUICK if options.quick else FULL
    if options.rounds:
        sizes = dataclasses.replace(sizes, rounds=options.rounds)
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Launcher() as launcher:
        # A server that runs as another user must be able to enter it.
        Path(folder).chmod(0o711)
        run = Run(launcher, Path(folder), lines, sizes)
        programs = run.available(peers)
        for name, reason in NOT_RUN.items():
            run.emit(kind="not_run", peer=name, reason=reason)
        run.emit(
            kind="run",
            machine=machine(),
            servers=run.server_versions(),
            versions={peer.name: locked_version(peer) for peer in peers},
            rounds=sizes.rounds,
            quick=options.quick,
        )
        run.measure(peers, programs, chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 with --quick")
    parser.add_argument("--only", default="", help="peers and measurements, separated by commas")
    parser.add_argument("--report", action="store_true", help="only write the report")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks",
        help="folder of RESULTS.md and of results/, with charts and JSON lines",
    )
    return parser


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
