"""A function with steps whose worker is killed while it runs.

    python examples/survive_a_kill.py

The first worker is killed with SIGKILL. The second worker takes over and continues after the last
stored step, so completed steps are not paid for again.
"""

import subprocess
import sys
import tempfile
import time

import longshore

CHAPTERS = ("harbour", "storm", "island")


@longshore.task(max_attempts=3)
def write_book() -> list[str]:
    ctx = longshore.current()
    return [ctx.step(chapter, lambda chapter=chapter: write(chapter)) for chapter in CHAPTERS]


def write(chapter: str) -> str:
    """A placeholder for a call that is slow and costs money."""
    attempt = longshore.current().attempt
    print(f"attempt {attempt} writes {chapter!r}", flush=True)
    # The first attempt is killed during this chapter.
    time.sleep(60 if attempt == 1 and chapter == CHAPTERS[1] else 0.2)
    return f"the {chapter}, written in attempt {attempt}"


def start_worker(folder: str) -> subprocess.Popen[bytes]:
    """Start a worker, as `longshore worker` does in a terminal."""
    command = [sys.executable, "-m", "longshore", "worker", "--data-dir", folder]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, longshore.Client(folder) as client:
        job = client.submit(write_book.of())
        worker = start_worker(folder)
        try:
            for chunk in job.output():
                print(chunk.text, end="")
                if CHAPTERS[1] in chunk.text and chunk.attempt == 1:
                    worker.kill()
                    worker.wait()
                    print("-- the worker was killed; another one starts --")
                    worker = start_worker(folder)
            print("the book:", *job.result(), sep="\n  ")
        finally:
            worker.terminate()
            worker.wait()


if __name__ == "__main__":
    main()
