"""Processes that cost no imports: a server imports torch, transformers and more once, then forks for every piece of code.

A fork is what a new interpreter is after these imports: memory, working folder, arguments, streams and signals are its own,
and nothing of the test process is in it. What the imports themselves do, and what libraries read from the environment while
they are imported, belongs to the server: code that needs another environment of that kind needs a server of its own.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

# `python -m hardkuma`, its arguments being the fork's.
COMMAND = "import runpy; runpy.run_module('hardkuma', run_name='__main__', alter_sys=True)"
IMPORTS = "import torch; from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer, pipeline"
# What training and its report import besides, where it is installed.
TRAINING = """
for name in ("accelerate", "datasets", "matplotlib.backends.backend_agg", "matplotlib.figure", "sentence_transformers"):
    try:
        __import__(name)
    except ImportError:
        pass
"""


class Fork:
    """A running fork: its process id, its end, and what it wrote."""

    def __init__(self, reply: int, output: Path):
        self.reply, self.output = os.fdopen(reply), output
        self.pid = int(self.reply.readline())
        self.returncode: int | None = None

    def poll(self, timeout: float = 0) -> int | None:
        """Its exit status, minus the signal's number if one ended it; None if it still runs after `timeout` seconds."""
        if self.returncode is None and select.select([self.reply], [], [], timeout)[0]:
            self.returncode = int(self.reply.readline())
            self.reply.close()
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        """Its exit status; one that takes longer is killed."""
        status = self.poll(timeout)
        if status is None:
            self.send_signal(signal.SIGKILL)
            raise TimeoutError(f"killed after {timeout} seconds; it said: {self.stderr[-2000:]}")
        return status

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def stdout(self) -> str:
        return (self.output / "stdout").read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        return (self.output / "stderr").read_text(encoding="utf-8")


class ForkServer:
    """`with ForkServer() as server: server.run("print(1)").stdout`.

    Args:
        flags: of the interpreter, such as "-S".
        environment: of the server and so of its forks; this process's by default.
        imports: the code that is run once, before any fork.
    """

    def __init__(self, *flags: str, environment: dict[str, str] | None = None, imports: str = IMPORTS):
        self.folder = Path(tempfile.mkdtemp(prefix="forks-"))
        self.modules = self.folder / "modules"  # the code of checkpoints that are loaded with trust_remote_code
        self.control, theirs = socket.socketpair()
        (self.folder / "empty").mkdir()
        environment = {**(os.environ if environment is None else environment), "HF_MODULES_CACHE": str(self.modules)}
        command = [sys.executable, *flags, "-c", Path(__file__).read_text(encoding="utf-8"), str(theirs.fileno()), imports]
        self.process = subprocess.Popen(command, env=environment, cwd=self.folder / "empty", pass_fds=[theirs.fileno()])
        theirs.close()
        self.count = 0

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.control.close()  # the server ends when nobody can ask any more
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(
        self,
        code: str,
        *arguments: object,
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        **environment: str,
    ) -> Fork:
        """Run code in a fork.

        Args:
            arguments: what it finds in sys.argv[1:].
            cwd: its working folder; an empty one by default.
            stdin: a file descriptor; nothing by default.
            stdout: a file descriptor; by default what it writes is kept as the fork's `stdout`.
            environment: added to the server's.
        """
        self.count += 1
        output = self.folder / str(self.count)
        output.mkdir()
        folder = str(cwd or self.folder / "empty")
        request = {"code": code, "arguments": [*map(str, arguments)], "environment": environment, "cwd": folder}
        content = json.dumps(request).encode()
        read, write = os.pipe()
        with open(os.devnull, "rb") as nothing, open(output / "stdout", "wb") as out, open(output / "stderr", "wb") as err:
            streams = [stdin or nothing.fileno(), stdout or out.fileno(), err.fileno()]
            socket.send_fds(self.control, [len(content).to_bytes(8, "big")], [*streams, write])
            self.control.sendall(content)
        os.close(write)
        return Fork(read, output)

    def run(self, code: str, *arguments: object, **options: object) -> Fork:
        """Run code in a fork and wait for its end; it finds no code of checkpoints that others left."""
        shutil.rmtree(self.modules, ignore_errors=True)
        fork = self.start(code, *arguments, **options)
        fork.wait()
        return fork

    def start_ranks(self, number: int, code: str, *arguments: object, **options: object) -> list[Fork]:
        """Run code in several forks that find each other, by the variables that torchrun and accelerate set, of which
        options may change some."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        size = {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number), **rendezvous}
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **size} for rank in range(number)]
        return [self.start(code, *arguments, **{**rank, **options}) for rank in ranks]


def serve(control: socket.socket) -> str:
    """Fork for every request; returns in the forks alone, with the code that is to run."""
    while True:
        header, descriptors, _, _ = socket.recv_fds(control, 8, 4)
        if not header:
            os._exit(0)
        content = b""
        while len(content) < int.from_bytes(header, "big"):
            content += control.recv(1 << 16)
        if os.fork() == 0:
            return attend(control, json.loads(content), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        while reap():
            pass


def reap() -> int:
    """Take leave of one that has ended: its process id, 0 where there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def attend(control: socket.socket, request: dict, descriptors: list[int]) -> str:
    """Between server and fork: report the fork's process id and its end. Returns in the fork."""
    control.close()
    *streams, reply = descriptors
    pid = os.fork()
    if pid:
        os.write(reply, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(reply, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for descriptor in descriptors:
        os.close(descriptor)
    # Where the tests run in the background of a shell, SIGINT is ignored, and that would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv = ["-c", *request["arguments"]]
    return request["code"]


def _is_of_files(function: object) -> bool:
    """Whether a function of C, or the object that it is of, is one of files."""
    own, of = getattr(function, "__module__", None), type(getattr(function, "__self__", None)).__module__
    return own in ("posix", "io", "fcntl") or of == "_io"


def killed_at(moment: int, run: Callable[[], object], files_alone: bool = False) -> bool:
    """Whether a process that is killed at its call of that number (of functions that open, read, write or move files) was
    killed; with `files_alone` before its change of that number of a file or folder."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    count = 0

    def kill_at_moment(event: str) -> None:
        nonlocal count
        if event == "os.kill":
            return
        count += event == "c_call" or event.startswith(("os.", "open", "ctypes.dlsym"))
        if count > moment:
            os.kill(os.getpid(), signal.SIGKILL)

    if files_alone:
        sys.addaudithook(lambda event, values: kill_at_moment(event))
    else:
        sys.setprofile(lambda frame, event, function: kill_at_moment(event) if _is_of_files(function) else None)
    run()
    os._exit(0)


if __name__ == "__main__":
    _control = socket.socket(fileno=int(sys.argv[1]))
    exec(sys.argv[2], {})
    os.fsync = lambda descriptor: None  # as in conftest.py
    gc.freeze()  # a collection in a fork would copy every page of what was imported
    _code = serve(_control)
    # From here on the interpreter ends the process as it ends any other: tracebacks, exit status, atexit.
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(_code, "<string>", "exec"), sys.modules["__main__"].__dict__)
