"""Fan out, fan in: one task a city, and one that waits for all of them.

    python examples/fan_out.py

`longshore.run` works in this process until the job is done; workers that serve the same data folder
help. Each task runs in a child of its own.
"""

import os
from dataclasses import dataclass

import longshore

ORDERS = {"Rotterdam": [120, 60], "Bergen": [80], "Lisbon": [45, 45, 10]}


@dataclass
class Sales:
    city: str
    total: int


@longshore.task(max_attempts=3, timeout="1m")
def add_up(city: str, amounts: list[int]) -> Sales:
    print(f"adding up {city} in process {os.getpid()}")
    return Sales(city, sum(amounts))


@longshore.task
def rank(sales: list[Sales]) -> list[str]:
    best_first = sorted(sales, key=lambda item: item.total, reverse=True)
    return [f"{item.city} {item.total}" for item in best_first]


if __name__ == "__main__":
    # Nothing runs here: each `of` describes a task, and a task in an argument is a dependency.
    sales = [add_up.of(city, amounts) for city, amounts in ORDERS.items()]
    for position, line in enumerate(longshore.run(rank.of(sales)), start=1):
        print(position, line)
