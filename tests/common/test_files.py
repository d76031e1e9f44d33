"""Files that are written whole or not at all, by one run at a time; results kept by their keys."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hardkuma.common import files
from hardkuma.common.files import (
    SEAL,
    OutputHeld,
    check_seal,
    hold_output,
    open_atomically,
    seal_folder,
    write_atomically,
)


@pytest.mark.parametrize("durable", [False, True])
def test_an_error_leaves_the_old_file_and_nothing_else(durable: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "old", durable)
    with pytest.raises(KeyError), open_atomically(path, durable) as stream:
        stream.write(b"half a fi")
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with open_atomically(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_file_is_on_the_disk_before_it_has_its_name(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a.txt", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((os.fstat(descriptor).st_size, path.exists())))
    write_atomically(path, "whole", durable)
    assert synced == ([(5, False)] if durable else []) and path.read_text() == "whole"


# ---- one writer ---------------------------------------------------------------------------------------------------------


HOLDER = """
import sys, time
from hardkuma.common.files import hold_output
with hold_output(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds `tmp_path / "out"`."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_who_holds_an_output_is_said_and_the_dead_hold_nothing(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    who = rf"out is being written by process {holder.pid} on {re.escape(socket.gethostname())} since 20\d\d-"
    with pytest.raises(OutputHeld, match=who), hold_output(tmp_path / "out"):
        pass
    with hold_output(tmp_path / "other"):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert os.listdir(tmp_path) == [".out.lock"], "it could not clean up"
    with hold_output(tmp_path / "out"):
        assert json.loads((tmp_path / ".out.lock").read_text())["process"] == os.getpid()
    assert os.listdir(tmp_path) == []


def test_a_disk_without_locks_goes_by_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_lock", lambda stream: None)
    lock, dead = tmp_path / ".out.lock", subprocess.Popen(["true"])
    dead.wait()
    for process, host, free in [
        (dead.pid, socket.gethostname(), True),
        (os.getpid(), socket.gethostname(), False),
        (dead.pid, "elsewhere", False),
    ]:
        lock.write_text(json.dumps({"process": process, "host": host, "since": "2026-01-01 00:00:00"}))
        if free:
            with hold_output(tmp_path / "out"):
                pass
            continue
        said = rf"written by process {process} on {host} since 2026-01-01 00:00:00: .*remove .*\.out\.lock"
        with pytest.raises(OutputHeld, match=said), hold_output(tmp_path / "out"):
            pass


def test_an_output_is_held_wherever_its_folder_is(tmp_path: Path) -> None:
    """Also where parents are missing, and by another spelling of the same name."""
    other = tmp_path / "new" / ".." / "new" / "out"
    with hold_output(tmp_path / "new" / "out"), pytest.raises(OutputHeld), hold_output(other):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with hold_output(tmp_path / "new" / "out"), pytest.raises(OutputHeld), hold_output(tmp_path / "link" / "out"):
        pass


@pytest.mark.parametrize("fault", ["cut", "changed", "missing", "no seal"])
def test_a_seal_sees_every_fault(fault: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    file, other = tmp_path / "inner" / "a", tmp_path / "b"
    file.write_bytes(b"whole")
    other.write_bytes(b"")
    seal_folder(tmp_path)
    check_seal(tmp_path)
    changes = {"cut": lambda: file.write_bytes(b"who"), "changed": lambda: file.write_bytes(b"whale")}
    changes |= {"missing": other.unlink, "no seal": (tmp_path / SEAL).unlink}  # type: ignore[dict-item]
    changes[fault]()
    with pytest.raises(OSError):
        check_seal(tmp_path)
