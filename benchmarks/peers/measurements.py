"""What is measured: each function has a session of its own and returns figures by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.figures import percentile
from benchmarks.peers.bodies import BEGIN, END, JOIN
from benchmarks.peers.launcher import (
    MeasurementFailed,
    cpu_below_s,
    pss_below_mib,
    traced_times_s,
    wait_until,
)
from benchmarks.peers.session import EXTRA, ClientCalls, Session

Figures = dict[str, float | bool | None]
_SETTLE_S = 0.3
_KILL_WORKERS, _KILL_SLOTS = 2, 2
_MAY_RUN_AGAIN_S, _RATE_S = 0.005, 0.05
_IDLE_SETTLE_S = 2.0
_LATENCY_INTERVAL_S = 0.05
# Two workers with four slots each; a task in ten takes a second, so three slots are busy.
_MIXED_INTERVAL_S = 1 / 30
_MIXED_BODIES = ["sleep_1s", *["noop"] * 9]
_LATE_TASKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers that make a run long or short."""

    is_quick: bool
    rounds: int
    task_share: float  # of the peer's own number of tasks
    traced: int  # submits under strace
    bulk: int
    paced: int  # submits to idle workers, one every 50 ms
    mixed: int
    sleeping: int  # tasks of 200 ms
    fan_out: int
    dag: int
    backlog: int
    high: int  # tasks submitted into the backlog
    kills: int
    idle_s: float
    traced_idle_s: float
    limit_s: float  # for any wait

    def tasks(self, session: Session) -> int:
        return max(50, int(session.peer.tasks * self.task_share))


FULL = Sizes(
    is_quick=False,
    rounds=3,
    task_share=1.0,
    traced=100,
    bulk=10_000,
    paced=200,
    mixed=600,
    sleeping=200,
    fan_out=1_000,
    dag=10_000,
    backlog=100_000,
    high=50,
    kills=3,
    idle_s=60.0,
    traced_idle_s=10.0,
    limit_s=180.0,
)
QUICK = Sizes(
    is_quick=True,
    rounds=1,
    task_share=0.1,
    traced=20,
    bulk=1_000,
    paced=20,
    mixed=60,
    sleeping=20,
    fan_out=100,
    dag=200,
    backlog=1_000,
    high=10,
    kills=1,
    idle_s=2.0,
    traced_idle_s=1.0,
    limit_s=30.0,
)


def durability(session: Session, sizes: Sizes) -> Figures:
    """Whether a submit has been synced to disk when it returns: syncs counted by strace."""
    client, server = session.folder / "client.trace", session.folder / "server.trace"
    promised = False
    if session.server is not None:
        promised = session.server.promises_sync()
        session.server.stop()
        session.server.start(trace=server)
    try:
        calls = session.submit(sizes.traced, trace=client)
    finally:
        if session.server is not None:
            session.server.stop()
            session.server.start()
    syncs = calls.counts_inside([*traced_times_s(client), *traced_times_s(server)])
    return {"syncs_per_submit": sum(syncs) / len(syncs), "durable": promised or all(syncs)}


def throughput(session: Session, sizes: Sizes) -> Figures:
    """Submit no-ops one by one, then start the workers."""
    count = sizes.tasks(session)
    before = session.disk_bytes()
    calls = session.submit(count)
    figures = drain(session, count, sizes.limit_s)
    after = session.disk_bytes()
    disk = None if before is None or after is None else (after - before) / count
    return {
        "submit_per_s": count / calls.seconds,
        "submit_cpu_us": calls.cpu_s / count * 1e6,
        **figures,
        "disk_bytes": disk,
    }


def drain(
    session: Session,
    count: int,
    limit_s: float,
    *,
    processes: int | None = None,
    slots: int | None = None,
) -> Figures:
    """Run tasks that wait; CPU is that of all workers and servers from the first task on."""
    with session.workers(processes=processes, slots=slots) as started:
        wait_until(
            lambda: session.recorded() or all(item.exit_code is not None for item in started),
            limit_s,
        )
        cpu_s, earlier = cpu_below_s(), session.recorded()
        session.wait_for(count, limit_s)
        time.sleep(_SETTLE_S)
        cpu_s, later = cpu_below_s() - cpu_s, session.recorded()
    times = sorted(item.at_s for item in session.records() if item.kind == BEGIN)
    if len(times) < 2:
        raise session.failure("no task ran")
    return {
        "tasks_per_s": (len(times) - 1) / (times[-1] - times[0]),
        "cpu_ms": cpu_s / (later - earlier) * 1000 if later - earlier > count / 5 else None,
        "missing": count - len({item.number for item in session.records()}),
    }


def print_lines(session: Session, sizes: Sizes) -> Figures:
    """Tasks that print one line."""
    count = sizes.tasks(session) // 2
    session.submit_fast(count, "print_line")
    return drain(session, count, sizes.limit_s)


def retries(session: Session, sizes: Sizes) -> Figures:
    """Tasks whose first attempt fails; figures per task, which has two attempts."""
    count = sizes.tasks(session) // 4
    session.submit_fast(count, "fail_once")
    return drain(session, count, sizes.limit_s)


def bulk(session: Session, sizes: Sizes) -> Figures:
    """Submit many no-ops with one call; in Longshore they are one job."""
    calls = session.call("submit_bulk", count=sizes.bulk)
    return {"per_s": sizes.bulk / calls.seconds, "cpu_us": calls.cpu_s / sizes.bulk * 1e6}


def jobs(session: Session, sizes: Sizes) -> Figures:
    """Submit many jobs of one no-op with one call."""
    calls = session.call("submit_jobs", count=sizes.bulk)
    return {"per_s": sizes.bulk / calls.seconds, "cpu_us": calls.cpu_s / sizes.bulk * 1e6}


def latency(session: Session, sizes: Sizes) -> Figures:
    """From just before the submit to the first line of the task, with idle workers."""
    with session.workers():
        session.warm_up()
        time.sleep(_SETTLE_S)
        before = session.recorded()
        calls = session.submit(sizes.paced, interval_s=_LATENCY_INTERVAL_S)
        session.wait_for(before + sizes.paced, sizes.limit_s)
    return _start_latency(session, calls)


def _start_latency(session: Session, calls: ClientCalls, *, first: int = 0) -> Figures:
    began: dict[int, float] = {}
    for item in session.records():
        if item.kind == BEGIN:
            began.setdefault(item.number, item.at_s)
    latencies_ms = [
        (began[first + index] - sent_s) * 1000
        for index, sent_s in enumerate(calls.before)
        if first + index in began
    ]
    if not latencies_ms:
        raise session.failure("no task ran")
    return {
        "p50_ms": percentile(latencies_ms, 0.5),
        "p99_ms": percentile(latencies_ms, 0.99),
        "missing": len(calls.before) - len(latencies_ms),
    }


def mixed(session: Session, sizes: Sizes) -> Figures:
    """Start of no-ops while a task in ten takes a second, on two workers with four slots."""
    with session.workers(processes=2, slots=4):
        session.warm_up()
        time.sleep(_IDLE_SETTLE_S)
        before = session.recorded()
        calls = session.call(
            "submit_each", bodies=_MIXED_BODIES, count=sizes.mixed, interval_s=_MIXED_INTERVAL_S
        )
        ends = sizes.mixed // len(_MIXED_BODIES)
        session.wait_for(before + sizes.mixed + ends, sizes.limit_s)
    long_tasks = {item.number for item in session.records() if item.kind == END}
    began = {item.number: item.at_s for item in session.records() if item.kind == BEGIN}
    latencies_ms = [
        (began[number] - sent_s) * 1000
        for number, sent_s in enumerate(calls.before)
        if number in began and number not in long_tasks
    ]
    if not latencies_ms:
        raise session.failure("no task ran")
    missing = sizes.mixed - len([number for number in began if number < EXTRA])
    return {"p99_ms": percentile(latencies_ms, 0.99), "missing": missing}


def slots(session: Session, sizes: Sizes) -> Figures:
    """Tasks of 200 ms on two workers with two slots, against slots that are never free."""
    with session.workers(processes=2, slots=2):
        session.warm_up()
        time.sleep(_IDLE_SETTLE_S)
        before = session.recorded()
        session.submit_fast(sizes.sleeping, "sleep_200ms")
        session.wait_for(before + 2 * sizes.sleeping, sizes.limit_s)
        time.sleep(_SETTLE_S)
    tasks = [item for item in session.records() if item.number < EXTRA]
    began = [item.at_s for item in tasks if item.kind == BEGIN]
    ended = [item.at_s for item in tasks if item.kind == END]
    if not ended:
        raise session.failure("no task ran")
    released = session.call("released", count=sizes.sleeping, body="sleep_200ms").value
    return {
        "share_of_ideal": len(ended) * 0.2 / 4 / (max(ended) - min(began)),
        "released_share": None if released is None else released / sizes.sleeping,
        "missing": sizes.sleeping - len(ended),
    }


def fan_out(session: Session, sizes: Sizes) -> Figures:
    """No-ops, then one task after all of them; from the submit to the last task."""
    with session.workers():
        session.warm_up()
        calls = session.call("fan_out", count=sizes.fan_out)
        wait_until(
            lambda: any(item.kind == JOIN for item in session.records()), sizes.limit_s, 0.05
        )
    joined = [item.at_s for item in session.records() if item.kind == JOIN]
    if not joined:
        raise session.failure("the last task did not run")
    return {"seconds": joined[0] - calls.before[0]}


def dag(session: Session, sizes: Sizes) -> Figures:
    """One DAG of no-ops in layers of 100, each task after two of the layer above."""
    calls = session.call("dag", count=sizes.dag)
    return {"submit_s": calls.seconds, **drain(session, sizes.dag, sizes.limit_s)}


def two_tenants(session: Session, sizes: Sizes) -> Figures:
    """No-ops of two tenants in equal shares."""
    half = sizes.tasks(session) // 2
    for number, tenant in enumerate(("first", "second")):
        variables = {"LONGSHORE_TENANT": tenant}
        session.call("submit_bulk", variables=variables, count=half, first=number * half)
    return drain(session, 2 * half, sizes.limit_s)


def priority(session: Session, sizes: Sizes) -> Figures:
    """Start of tasks with high priority that are submitted into a backlog of low ones."""
    session.submit_fast(sizes.backlog)
    with session.workers():
        session.wait_for(1, sizes.limit_s)
        calls = session.submit(sizes.high, first=EXTRA, interval_s=_LATENCY_INTERVAL_S, high=True)
        _wait_for_extra(session, sizes.high, sizes)
    return _start_latency(session, calls, first=EXTRA)


def fairness(session: Session, sizes: Sizes) -> Figures:
    """When the last of ten tasks of a tenant starts while another tenant has a backlog."""
    session.call("submit_bulk", variables={"LONGSHORE_TENANT": "first"}, count=sizes.backlog)
    with session.workers():
        session.wait_for(1, sizes.limit_s)
        variables = {"LONGSHORE_TENANT": "second"}
        calls = session.submit(_LATE_TASKS, first=EXTRA, variables=variables)
        _wait_for_extra(session, _LATE_TASKS, sizes)
    began = [item.at_s for item in session.records() if item.number >= EXTRA]
    if len(began) < _LATE_TASKS:
        message = f"{len(began)} of {_LATE_TASKS} tasks started within {sizes.limit_s:.0f} s"
        raise MeasurementFailed(message)
    return {"last_start_s": max(began) - calls.before[0]}


def _wait_for_extra(session: Session, count: int, sizes: Sizes) -> None:
    wait_until(
        lambda: sum(item.number >= EXTRA for item in session.records()) >= count,
        sizes.limit_s,
        0.1,
    )


def kill(session: Session, sizes: Sizes) -> Figures:
    """Bodies that run again, and tasks that do not run in time, if workers are killed."""
    count = sizes.tasks(session)
    session.submit_fast(count)
    killed_at: list[float] = []
    with session.workers(processes=_KILL_WORKERS, slots=_KILL_SLOTS) as workers:
        for number in range(sizes.kills):
            session.wait_for(count * (number + 1) // (sizes.kills + 2), sizes.limit_s)
            killed_at.append(time.monotonic())
            session.replace_worker(workers, number % len(workers), slots=_KILL_SLOTS)
        wait_until(
            lambda: (
                session.recorded() >= count
                and len({item.number for item in session.records()}) >= count
            ),
            sizes.limit_s,
            0.1,
        )
        time.sleep(_SETTLE_S)
    records = session.records()
    distinct = len({item.number for item in records})
    recent = [moment - _RATE_S <= item.at_s <= moment for item in records for moment in killed_at]
    finished = sum(recent) * _MAY_RUN_AGAIN_S / _RATE_S / _KILL_WORKERS
    return {
        "run_again_per_kill": (len(records) - distinct) / sizes.kills,
        "may_run_again_per_kill": finished / sizes.kills + _KILL_SLOTS,
        "missing_per_kill": (count - distinct) / sizes.kills,
    }


def idle(session: Session, sizes: Sizes) -> Figures:
    """CPU, memory (PSS) of workers and servers, and system calls of the workers, without tasks."""
    with session.workers():
        session.warm_up()
        time.sleep(_IDLE_SETTLE_S)
        cpu_s = cpu_below_s()
        time.sleep(sizes.idle_s)
        cpu_s = cpu_below_s() - cpu_s
        pss_mib = pss_below_mib()
    with session.workers(trace="calls"):
        session.warm_up()
        time.sleep(_IDLE_SETTLE_S)
        began = time.time()
        time.sleep(sizes.traced_idle_s)
        ended = time.time()
    calls = [began <= moment <= ended for moment in session.trace_times_s("calls")]
    return {
        "cpu_percent": 100 * cpu_s / sizes.idle_s,
        "pss_mib": pss_mib,
        "calls_per_s": sum(calls) / sizes.traced_idle_s,
    }


MEASUREMENTS: dict[str, Callable[[Session, Sizes], Figures]] = {
    "durability": durability,
    "throughput": throughput,
    "bulk": bulk,
    "jobs": jobs,
    "latency": latency,
    "fan_out": fan_out,
    "print": print_lines,
    "retries": retries,
    "dag": dag,
    "two_tenants": two_tenants,
    "priority": priority,
    "mixed": mixed,
    "slots": slots,
    "fairness": fairness,
    "kill": kill,
    "idle": idle,
}
# What a quick run measures of the peers; of Longshore's first variant it measures everything.
QUICK_MEASUREMENTS = frozenset({"durability", "throughput", "bulk", "jobs", "latency", "fan_out"})
# These are counts, or take minutes, so one round is enough.
ONCE = frozenset({"durability", "kill", "idle"})
