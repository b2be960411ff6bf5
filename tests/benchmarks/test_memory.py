"""Which memory growth the benchmark reports as a slope, and which as flat."""

from collections.abc import Callable

import pytest

from benchmarks.figures import Figure
from benchmarks.memory import Run, Sample, slope

TASKS = 20_000
WORKER_KIB = 50 * 1024


def _figure(size_kib: Callable[[int], float], *, every: int = 50) -> Figure:
    samples = [
        Sample(done=done, worker=size_kib(done), fork_server=0, reaper=0)
        for done in range(every, TASKS + 1, every)
    ]
    run = Run(samples=samples, seconds=40, processes=8, together_kib=0)
    return slope("memory.worker", run, lambda sample: sample.worker)


def _result(figure: Figure) -> str:
    assert figure.target is not None
    return figure.target.result


def test_a_few_bytes_retained_for_each_task_are_a_slope() -> None:
    retained_bytes = 200

    figure = _figure(lambda done: WORKER_KIB + done * retained_bytes / 1024)

    assert figure.value == pytest.approx(1000 * retained_bytes / 1024)
    assert _result(figure) == "above"


@pytest.mark.parametrize("allocated_at", [6_000, 12_500, 19_000])
def test_a_single_allocation_at_any_time_is_no_slope(allocated_at: int) -> None:
    figure = _figure(lambda done: WORKER_KIB + (1024 if done >= allocated_at else 0))

    assert _result(figure) == "PASS"


def test_growth_in_the_first_quarter_does_not_count() -> None:
    figure = _figure(lambda done: WORKER_KIB + min(done, TASKS // 4))

    assert figure.value == pytest.approx(0)
    assert _result(figure) == "PASS"


def test_a_small_process_may_grow_by_less_than_a_large_one() -> None:
    figure = _figure(lambda done: 10 * 1024 + done * 100 / 1024)

    assert figure.value == pytest.approx(1000 * 100 / 1024)
    assert _result(figure) == "above"


def test_a_run_without_samples_after_the_first_quarter_has_no_value() -> None:
    figure = _figure(lambda _done: WORKER_KIB, every=TASKS)

    assert figure.value is None
    assert figure.note
