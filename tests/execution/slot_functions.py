"""Functions that tests let the children of slots run."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from longshore.execution.runners.context import current

_forever = threading.Event()


def echo(value: Any = None) -> Any:
    return value


def process_id() -> int:
    return os.getpid()


def prints(text: str) -> None:
    """Through every way to the same two pipes."""
    sys.stdout.write(f"python {text}\n")
    sys.stderr.write(f"errors {text}\n")
    sys.stdout.flush()
    os.write(1, f"raw {text}\n".encode())
    subprocess.run(["sh", "-c", f"echo command {text}"], check=True)
    sys.stdout.write(f"unflushed {text}")


def writes_zeros(count: int) -> None:
    """Bytes with which a boundary begins."""
    os.write(1, b"\0" * count)


def waits() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _forever.wait()


def waits_for(path: str) -> str:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not Path(path).exists():
        time.sleep(0.002)  # noqa: TID251 - another process creates it
    return path


def ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    waits()


def stops_when_asked() -> str:
    context = current()
    seen = context.cancelled
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not context.cancelled:
        time.sleep(0.002)  # noqa: TID251 - a signal ends it
    return f"{seen} {context.cancelled}"


def leaves_a_thread() -> int:
    threading.Thread(target=_forever.wait).start()
    return os.getpid()


def threads_in_a_fork() -> list[int]:
    """Returns how many threads there are, and how many a fork finds."""
    thread = threading.Thread(target=_forever.wait, daemon=True)
    thread.start()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, str(threading.active_count()).encode())
        os._exit(0)
    os.wait()
    return [threading.active_count(), int(os.read(reading, 100))]


def leaves_a_process() -> int:
    """Returns the process id of a process in another session, without pipes."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        daemon = os.fork()
        if daemon == 0:
            os.closerange(0, 1000)
            _forever.wait()
        os.write(writing, str(daemon).encode())
        os._exit(0)
    os.wait()
    return int(os.read(reading, 100))


def hides_a_process_and_waits() -> None:
    sys.stdout.write(f"{leaves_a_process()}\n")
    sys.stdout.flush()
    _forever.wait()


def folder_and_cwd(use: bool) -> list[str]:
    if use:
        Path(current().folder, "note").write_text("content")
    return [os.getcwd(), os.environ["PWD"]]  # noqa: TID251


def changes_its_folder(change: str) -> list[str]:
    """Returns what was in the folder."""
    entries = os.listdir()
    if change == "write":
        Path("note").write_text("content")
    elif change == "remove":
        os.rmdir(os.getcwd())
    elif change == "protect":
        os.chmod(".", 0o500)
    return entries


def leaves_a_module_and_waits() -> None:
    """The module has the name of one of the standard library."""
    Path("shutil.py").write_text("open('../imported', 'w').close()")
    waits()


def writes_and_waits() -> None:
    Path("note").write_text("content")
    waits()


def summarises() -> None:
    current().summary("one line")


def stores(text: str) -> str:
    Path("file").write_text(text)
    return current().artifact("file")


def context_of_task() -> list[Any]:
    here = current()
    return [
        here.task_id,
        here.job_id,
        here.attempt,
        here.dependency_outputs,
        here.feedback,
        here.previous_output,
    ]


def steps(*names: str) -> list[Any]:
    return [current().step(name, lambda name=name: name.upper()) for name in names]


def long_step(size: int) -> int:
    return len(current().step("long", lambda: "x" * size))


def reports() -> None:
    here = current()
    here.log("a line")
    here.progress(1, 2, "halves")


def changes_its_surroundings() -> None:
    os.chdir("/")
    os.environ["LEFT"] = "1"  # noqa: TID251
    os.environ["PATH"] = "/nowhere"  # noqa: TID251
    del os.environ["PWD"]  # noqa: TID251
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)


def surroundings() -> list[Any]:
    sys.stdout.write("seen")
    names = ("LEFT", "LONGSHORE_ATTEMPT_TASK", "PATH")
    return [os.environ.get(name) for name in names]  # noqa: TID251


def traces() -> list[Any]:
    return [current().traceparent, os.environ.get("TRACEPARENT")]  # noqa: TID251


def open_files() -> list[str]:
    names = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            names.append(os.readlink(f"/proc/self/fd/{entry}"))
    return names


def exits(code: int) -> None:
    os._exit(code)


def exits_badly_after_its_result() -> str:
    import atexit

    atexit.register(os._exit, 3)
    return "done"


def raises(message: str) -> None:
    raise ConnectionResetError(message)


def _reports_file() -> int:
    """The child's end of the pipe for reports; its number depends on what the worker has open."""
    channel: Any = current()._channel
    return int(channel._child._files.reports)


def _long_summary() -> bytes:
    from longshore.execution.slot_protocol import ReportFrame, encode_frame

    running: Any = current()._channel
    message = b'{"type":"summary","text":"%b"}' % (b"x" * 70_000)
    return encode_frame(ReportFrame(running._record.number, running._record.fence, message))


def writes_garbage(kind: str) -> None:
    """To the pipe for reports."""
    data = {
        "text": b"this is no frame" * 10,
        "length": b"\xff\xff\xff\x7f",
        "content": b"\x03\0\0\0abc",
        "size": _long_summary(),
    }[kind]
    os.write(_reports_file(), data)
    _forever.wait()


def forges_an_outcome(number: int, fence: int) -> None:
    """The outcome of another task, and a report of this one, which is the first."""
    from longshore.execution.slot_protocol import OutcomeFrame, ReportFrame, encode_frame

    outcome = OutcomeFrame(number, fence, 0, False, False, b'"forged"', None)
    report = ReportFrame(1, fence, b'{"type": "summary", "text": "still here"}')
    os.write(_reports_file(), encode_frame(outcome) + encode_frame(report))
    _forever.wait()


def closes_its_files() -> None:
    os.closerange(0, 1000)


def forks_and_both_return(fail: bool) -> str:
    process_id = os.fork()
    if process_id == 0 and fail:
        raise ValueError
    if process_id:
        os.waitpid(process_id, 0)
        return "parent"
    return "fork"


def kills_its_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def grows(megabytes: int) -> int:
    return len(bytearray(megabytes * 2**20).replace(b"\0", b"x"))
