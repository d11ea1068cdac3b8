"""Processes for tests that kill them or let them work together.

Importing torch takes seconds, so the script of a test imports it once and forks: each child runs
a function, reports through a pipe, and may be sent a signal in the midst of it.
"""

import json
import os
import signal
import socket
import time
import traceback
from dataclasses import dataclass

LOCAL = {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}


@dataclass
class Child:
    """A forked process and the pipe through which it reports."""

    pid: int
    pipe: int
    heard: bytes = b""

    def wait_for(self, dots):
        """Wait until the child has reported so many steps, or ended."""
        while self.heard.count(b".") < dots and b"\n" not in self.heard:
            piece = os.read(self.pipe, 1)
            if not piece:
                return
            self.heard += piece

    def kill(self, number=signal.SIGKILL):
        """Send a signal."""
        os.kill(self.pid, number)

    def end(self):
        """Wait for the end; return the exit code (negative: the signal) and the answer."""
        self.heard += b"".join(iter(lambda: os.read(self.pipe, 65536), b""))
        os.close(self.pipe)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        answer = self.heard.lstrip(b".")
        return code, json.loads(answer) if answer.endswith(b"\n") else None


def fork(work, environment=None):
    """Start a process that runs ``work(report)`` and answers with what it returns, as JSON."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    os.close(reading)
    os.environ.update(environment or {})
    code = 1
    try:
        answer = work(lambda: os.write(writing, b"."))
        os.write(writing, json.dumps(answer).encode() + b"\n")
        code = 0
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def fork_many(world, work):
    """Start processes that know of each other, as ``accelerate launch`` does; one is alone."""
    if world == 1:
        return [fork(work, {"ACCELERATE_USE_CPU": "true"})]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = LOCAL | {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    ranks = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(world)]
    return [fork(work, {name: str(value) for name, value in rank.items()}) for rank in ranks]


def end_all(children, patience=200):
    """Return what each child ended with; one that outlives the patience is killed."""
    limit = time.monotonic() + patience
    ended = []
    for child in children:
        while time.monotonic() < limit:
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.01)
        else:
            child.kill()
        ended.append(child.end())
    return ended


def together(world, work):
    """Run in processes that know of each other; return their answers, which none may miss."""
    ended = end_all(fork_many(world, work))
    assert all(code == 0 for code, _ in ended), f"exit codes {[code for code, _ in ended]}"
    return [answer for _, answer in ended]
