"""Bodies and lines of hostile shapes, with bounds on the loop and the memory; see ``body_fuzz``.

The program sends every shape at full size; here are those that were expensive.
"""

from collections.abc import Iterator

import pytest

from tests.interfaces.rest.body_fuzz import (
    BODY_BYTES,
    LINE_BYTES,
    SEVERAL,
    SHAPES,
    MeteredServer,
    Request,
    excess,
    job_with,
    wide_jobs,
    write_lines,
)

EXPENSIVE = (
    "half a million fields",
    "half a million zeros",
    "many lists",
    "many duplicate fields",
    "deep lists",
    "a long string of accents",
    "a long string with one emoji",
    "a long string with an escaped emoji",
    "many huge numbers",
    "not UTF-8 at its end",
)
LINES = (
    ("result", "many lists", "failed"),
    ("result", "half a million fields", "completed"),
    ("result", "a long string of accents", "failed"),  # longer than sizes.result_bytes
    ("result", "deep lists", "failed"),
    ("step", "many zeros", "failed"),
    ("conversation", "many objects", "failed"),
    ("activity", "many lists", "failed"),
    ("result", "a huge number", "failed"),
    ("step", "a huge float", "failed"),
    ("conversation", "a long string with an escaped emoji", "failed"),
    *((*lines, ended) for lines, ended in SEVERAL.items()),
)
WIDE = {name: (path, job) for name, path, job in wide_jobs()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredServer]:
    with MeteredServer(tmp_path_factory.mktemp("metered")) as server:
        yield server


@pytest.mark.parametrize("shape", EXPENSIVE)
def test_a_body_does_not_hold_the_loop_or_the_memory(server: MeteredServer, shape: str) -> None:
    body = SHAPES[shape](BODY_BYTES - 200)
    for sent in (body, job_with(body)):
        assert Request(shape, "/v1/jobs", sent).send(server.client) in (0, 201, 400, 413, 422)
        assert excess(shape, server.cost()) is None


@pytest.mark.parametrize("name", ["400,000 dependencies", "unknown fields", "problems"])
def test_a_large_job_does_not_hold_the_loop(server: MeteredServer, name: str) -> None:
    path, job = WIDE[name]
    request = Request(name, path, job)
    assert request.send(server.client) in (201, 422)
    assert excess(name, server.cost()) is None


@pytest.mark.parametrize(("kind", "shape", "ended"), LINES)
def test_a_line_of_a_child_does_not_hold_the_loop_or_the_memory(
    server: MeteredServer, kind: str, shape: str, ended: str
) -> None:
    before = server.above_idle_bytes()
    assert write_lines(server, kind, shape) == ended
    cost = server.cost()
    assert excess(f"{kind} of {shape}", cost) is None
    assert cost.above_idle_bytes - before < 1.5 * LINE_BYTES  # one copy of one line


def test_compressed_bodies_are_refused(server: MeteredServer) -> None:
    request = Request("gzip", "/v1/jobs", b"x" * 1_000_000, encoding="gzip")

    assert request.send(server.client) == 415
