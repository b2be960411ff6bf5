"""DBOS: a durable workflow with one step, on SQLite or PostgreSQL. As a module it is a worker."""

from __future__ import annotations

import os
import sys
import threading

from dbos import DBOS, DBOSClient

from benchmarks.peers import bodies

_POSTGRES = os.environ.get("BENCH_POSTGRES_URL", "")
_URL = (
    _POSTGRES.replace("postgresql://", "postgresql+psycopg://")
    or f"sqlite:///{os.environ['BENCH_DATABASE']}"
)
_SLOTS = int(os.environ.get("BENCH_SLOTS", "200"))
_POLL_S = 0.05
_client: DBOSClient


@DBOS.step(retries_allowed=True, max_attempts=3, interval_seconds=0.0)
def run_body(body: str, number: int) -> None:
    bodies.BODIES[body](number)


@DBOS.workflow()
def one_step(body: str, number: int) -> None:
    run_body(body, number)


@DBOS.step()
def run_join() -> None:
    bodies.join()


@DBOS.workflow()
def fan(count: int) -> None:
    handles = [DBOS.enqueue_workflow("tasks", one_step, "noop", item) for item in range(count)]
    for handle in handles:
        handle.get_result()
    run_join()


def _launch(executor: str, slots: int) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": _URL,
            "log_level": "ERROR",
            "executor_id": executor,
            "application_version": "1",
        }
    )
    DBOS.launch()
    for queue in ("tasks", "fans"):
        DBOS.register_queue(
            queue,
            worker_concurrency=slots,
            polling_interval_sec=_POLL_S,
            on_conflict="always_update",
        )


def install() -> None:
    # A worker takes tasks with the stored number of slots until it has registered its own.
    _launch("install", 1)
    DBOS.destroy()


def connect() -> None:
    global _client
    _client = DBOSClient(system_database_url=_URL)


def _enqueue(workflow: str, queue: str, *arguments: object) -> None:
    options = {"workflow_name": workflow, "queue_name": queue, "application_name": "bench"}
    _client.enqueue(options, *arguments)


def submit(body: str, number: int) -> None:
    _enqueue("one_step", "tasks", body, number)


def fan_out(count: int) -> None:
    _enqueue("fan", "fans", count)


if __name__ == "__main__":
    _launch(sys.argv[1], _SLOTS)
    threading.Event().wait()
