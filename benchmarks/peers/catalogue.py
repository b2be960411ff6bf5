"""The peers: how each is started, what it can do, and which it cannot be measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CORE = ("durability", "throughput", "latency", "idle", "print", "retries", "mixed", "slots", "kill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One queue with one configuration of its workers."""

    name: str
    packages: str  # its environment, and its file in `requirements`
    adapter: str
    store: str  # sqlite, or the name of its server
    # The worker's command. `{bin}` is the folder of its programs, `{adapter}` its adapter's module.
    command: tuple[str, ...]
    # Options for the usual run, and for a run with a number of slots, which the adapter also finds
    # in the variable BENCH_SLOTS. None: every command has one slot.
    usual: tuple[str, ...] = ()
    slotted: tuple[str, ...] | None = None
    processes: int = 2  # commands that are started in the usual run
    variables: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 5_000  # of the throughput measurement
    measurements: tuple[str, ...] = CORE
    note: str = ""

    def workers(
        self, programs: str, *, processes: int | None = None, slots: int | None = None
    ) -> list[list[str]]:
        """The commands to start, for the usual run or for so many processes and slots."""
        count = processes or self.processes
        options = self.usual if slots is None else self.slotted or ()
        if slots is not None and self.slotted is None:
            count *= slots
        values = {
            "bin": programs,
            "adapter": f"benchmarks.peers.adapters.{self.adapter}",
            "slots": slots,
            "half": max(1, (slots or 0) // 2),
        }
        return [
            [part.format(**values, process=number) for part in (*self.command, *options)]
            for number in range(count)
        ]


def _longshore(name: str, *, isolation: str, processes: int, slots: int, tasks: int) -> Peer:
    return Peer(
        name=name,
        packages="",
        adapter="longshore",
        store="sqlite",
        command=("{bin}/longshore", "worker", "--app", "{adapter}"),
        usual=("--concurrency", str(slots)),
        slotted=("--concurrency", "{slots}"),
        processes=processes,
        variables={
            "BENCH_ISOLATION": isolation,
            "LONGSHORE_WORKER_PASS_ENVIRONMENT": "PATH,HOME,LANG,BENCH_FOLDER,PYTHONPATH",
            "LONGSHORE_LOG_FORMAT": "text",
        },
        tasks=tasks,
        measurements=(
            *CORE,
            *("bulk", "jobs", "fan_out", "dag", "two_tenants", "priority", "fairness"),
        ),
        note=f"`isolation: {isolation}`",
    )


_MODULE = ("{bin}/python", "-m", "{adapter}")

PEERS: tuple[Peer, ...] = (
    _longshore("longshore-pool-1x2", isolation="pool", processes=1, slots=2, tasks=5_000),
    _longshore("longshore-pool-2x1", isolation="pool", processes=2, slots=1, tasks=5_000),
    _longshore("longshore-fork", isolation="fork", processes=1, slots=2, tasks=1_000),
    Peer(
        name="huey",
        packages="huey",
        adapter="huey",
        store="sqlite",
        command=("{bin}/huey_consumer", "{adapter}.huey", "-q", "-k", "process"),
        usual=("-w", "2"),
        slotted=("-w", "{slots}"),
        processes=1,
        measurements=(*CORE, "fan_out", "priority"),
    ),
    Peer(
        name="litequeue",
        packages="litequeue",
        adapter="litequeue",
        store="sqlite",
        command=_MODULE,
        measurements=("durability", "throughput", "kill"),
        note="a queue only; the loop of the worker is the adapter's",
    ),
    Peer(
        name="persist-queue",
        packages="persistqueue",
        adapter="persistqueue",
        store="sqlite",
        command=_MODULE,
        processes=1,
        measurements=("durability", "throughput"),
        note="a queue only, for one consumer; the loop of the worker is the adapter's",
    ),
    Peer(
        name="tinyjobs",
        packages="tinyjobs",
        adapter="tinyjobs",
        store="sqlite",
        command=("{bin}/tinyjobs", "worker", "--app", "{adapter}:app", "--log-level", "WARNING"),
        slotted=("--concurrency", "{slots}"),
    ),
    Peer(
        name="honker",
        packages="honker",
        adapter="honker",
        store="sqlite",
        command=("{bin}/python", "-m", "honker", "worker", "{adapter}:db", "--queue", "default"),
        slotted=("--concurrency", "{slots}"),
        measurements=(*CORE, "bulk"),
    ),
    Peer(
        name="django-tasks",
        packages="djangotasks",
        adapter="djangotasks",
        store="sqlite",
        command=("{bin}/python", "-m", "django", "db_worker", "-v", "0"),
        variables={"DJANGO_SETTINGS_MODULE": "benchmarks.peers.adapters.djangotasks_settings"},
        tasks=1_000,
        measurements=tuple(item for item in CORE if item != "retries"),
        note="an idle worker polls once a second; no retries",
    ),
    Peer(
        name="dbos-sqlite",
        packages="dbos",
        adapter="dbos",
        store="sqlite",
        command=(*_MODULE, "{process}"),
        slotted=(),
        tasks=1_000,
        measurements=(*CORE, "fan_out"),
        note="a workflow with one step; polls every 50 ms",
    ),
    Peer(
        name="dbos-postgres",
        packages="dbos",
        adapter="dbos",
        store="postgres",
        command=(*_MODULE, "{process}"),
        slotted=(),
        tasks=1_000,
        measurements=(*CORE, "fan_out"),
        note="a workflow with one step; polls every 50 ms",
    ),
    Peer(
        name="pgqueuer",
        packages="pgqueuer",
        adapter="pgqueuer",
        store="postgres",
        command=("{bin}/pgq", "run", "--log-level", "WARNING", "{adapter}:main"),
        slotted=("--batch-size", "{half}", "--max-concurrent-tasks", "{slots}"),
        measurements=(*CORE, "bulk", "priority"),
    ),
    Peer(
        name="procrastinate",
        packages="procrastinate",
        adapter="procrastinate",
        store="postgres",
        command=("{bin}/procrastinate", "--app", "{adapter}.app", "worker"),
        usual=("-c", "10"),
        slotted=("-c", "{slots}"),
        measurements=(*CORE, "bulk", "priority"),
    ),
    Peer(
        name="absurd",
        packages="absurd",
        adapter="absurd",
        store="postgres",
        command=_MODULE,
        slotted=(),
        tasks=2_000,
        note="a task with one step",
    ),
    Peer(
        name="rq-fork",
        packages="rq",
        adapter="rq",
        store="redis",
        command=("{bin}/rq", "worker", "-q"),
        tasks=1_000,
        measurements=(*CORE, "bulk", "fan_out", "dag", "priority"),
        note="a fork per task",
    ),
    Peer(
        name="arq",
        packages="arq",
        adapter="arq",
        store="redis",
        command=("{bin}/arq", "--custom-log-dict", "{adapter}.LOG", "{adapter}.WorkerSettings"),
        slotted=(),
        note="10 tasks at once, polls every 0.5 s",
    ),
    Peer(
        name="saq",
        packages="saq",
        adapter="saq",
        store="redis",
        command=("{bin}/saq", "{adapter}.settings"),
        slotted=(),
        note="10 tasks at once",
    ),
    Peer(
        name="taskiq",
        packages="taskiq",
        adapter="taskiq",
        store="redis",
        command=("{bin}/taskiq", "worker", "--log-level", "WARNING", "-w", "1", "{adapter}:broker"),
        slotted=("--max-async-tasks", "{slots}"),
        note="Redis streams with acknowledgement",
    ),
    Peer(
        name="celery",
        packages="celery",
        adapter="celery",
        store="redis",
        command=(
            "{bin}/celery",
            "-A",
            "{adapter}",
            "worker",
            "-l",
            "WARNING",
            "-n",
            "w{process}@h",
        ),
        usual=("-c", "2"),
        slotted=("-c", "{slots}"),
        processes=1,
        measurements=(*CORE, "bulk", "fan_out"),
        note="prefork, acknowledged before the task runs",
    ),
    Peer(
        name="dramatiq",
        packages="dramatiq",
        adapter="dramatiq",
        store="redis",
        command=("{bin}/dramatiq", "{adapter}", "-p", "1"),
        usual=("-t", "8"),
        slotted=("-t", "{slots}"),
        measurements=(*CORE, "fan_out"),
    ),
    Peer(
        name="temporal",
        packages="temporal",
        adapter="temporal",
        store="temporal",
        command=_MODULE,
        slotted=(),
        tasks=300,
        measurements=(*CORE, "fan_out"),
        note="development server; a workflow with one activity",
    ),
    Peer(
        name="prefect",
        packages="prefect",
        adapter="prefect",
        store="prefect",
        command=_MODULE,
        slotted=(),
        tasks=200,
        measurements=tuple(item for item in CORE if item != "mixed"),
        note="background tasks",
    ),
)

# Peers that a reader would look for, and why there is no figure.
NOT_RUN = {
    "restate": "its server is distributed by npm and Docker only",
    "hatchet": "its server is distributed by Docker only",
}
