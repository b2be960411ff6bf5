"""django-tasks with its database backend on SQLite."""

from __future__ import annotations

import django

from benchmarks.peers import bodies

django.setup()

from django.core.management import call_command  # noqa: E402 - needs Django's setup
from django_tasks import task  # noqa: E402


@task()
def noop(number: int) -> None:
    bodies.noop(number)


@task()
def print_line(number: int) -> None:
    bodies.print_line(number)


@task()
def sleep_200ms(number: int) -> None:
    bodies.sleep_200ms(number)


@task()
def sleep_1s(number: int) -> None:
    bodies.sleep_1s(number)


_TASKS = {item.func.__name__: item for item in (noop, print_line, sleep_200ms, sleep_1s)}


def install() -> None:
    call_command("migrate", verbosity=0)


def submit(body: str, number: int) -> None:
    _TASKS[body].enqueue(number)
