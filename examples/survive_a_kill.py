"""A function with steps whose worker is killed in the middle of it.

    python examples/survive_a_kill.py

The first worker dies by SIGKILL, without a word, as if somebody had pulled the plug. The second
takes the task over and goes on after the last step that was kept: nothing that was paid for is paid
for again.
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
    """Stands for a call that takes its time and costs something."""
    attempt = longshore.current().attempt
    print(f"attempt {attempt} writes {chapter!r}", flush=True)
    # The first attempt is to be killed in the middle of this chapter.
    time.sleep(60 if attempt == 1 and chapter == CHAPTERS[1] else 0.2)
    return f"the {chapter}, written in attempt {attempt}"


def a_worker(folder: str) -> subprocess.Popen[bytes]:
    """A worker as one starts it in a terminal: `longshore worker`."""
    command = [sys.executable, "-m", "longshore", "worker", "--data-dir", folder]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, longshore.Client(folder) as client:
        job = client.submit(write_book.of())
        worker = a_worker(folder)
        try:
            for piece in job.output():
                print(piece.text, end="")
                if CHAPTERS[1] in piece.text and piece.attempt == 1:
                    worker.kill()
                    worker.wait()
                    print("-- the worker is killed; another one starts --")
                    worker = a_worker(folder)
            print("the book:", *job.result(), sep="\n  ")
        finally:
            worker.terminate()
            worker.wait()


if __name__ == "__main__":
    main()
