"""Sides of a few lines, run in real worker processes. They import nothing heavy."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path


class Echo:
    """Answers, raises, dies, hangs and writes garbage on demand."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting
        self.beats = 0

    def hello(self) -> dict:
        return {"greeting": self.greeting}

    def add(self, a: int, b: int) -> dict:
        return {"sum": a + b}

    def environment(self) -> dict:
        return {"variables": dict(os.environ), "arguments": sys.argv, "folder": os.getcwd()}

    def look(self, code: str) -> dict:
        """Run code; what it calls `found`."""
        names: dict = {}
        exec(code, names)
        return {"found": names["found"]}

    def read(self, size: int, descriptors: list) -> dict:
        (descriptor,) = descriptors
        return {"text": os.pread(descriptor, size, 0).decode()}

    def go_through(self, descriptors: list) -> dict:
        """Wait at a gate, and say there what it was told."""
        with socket.socket(fileno=descriptors[0]) as channel:
            channel.send(b"here")
            channel.send(channel.recv(10))
        return {"through": True}

    def pass_by(self, descriptors: list) -> dict:
        return {}

    def hang_before(self, descriptors: list) -> dict:
        return self.hang()

    def fail_speechless(self) -> dict:
        class Speechless(Exception):
            def __str__(self) -> str:
                raise ValueError("no words")

        raise Speechless

    def fail(self, message: str) -> dict:
        print("before the failure", flush=True)
        raise ValueError(message)

    def leave(self, status: int) -> dict:
        print("leaving", flush=True)
        os._exit(status)

    def exit(self) -> dict:
        raise SystemExit(0)

    def hang(self) -> dict:
        print("about to hang", flush=True)
        time.sleep(600)
        return {}

    def nap(self, seconds: float) -> dict:
        time.sleep(seconds)
        return {}

    def spawn_apart(self) -> dict:
        """Start a child that asks for a session of its own."""
        import subprocess

        return {"child": subprocess.Popen(["sleep", "600"], start_new_session=True).pid}

    def write(self, paths: list, remounts: bool) -> dict:
        """Those of the files that can be written; `remounts`: after asking the kernel for write access."""
        import ctypes

        new_user, new_mounts, remount, bind = 0x10000000, 0x20000, 0x20, 0x1000
        libc, written = ctypes.CDLL(None), []
        for attempt in range(2 if remounts else 0):
            libc.mount(b"none", b"/", None, remount | bind, None)
            if not attempt:
                libc.unshare(new_user | new_mounts)
        for path in paths:
            try:
                with open(path, "w") as file:
                    file.write("x")
                written.append(path)
            except OSError:
                pass
        return {"written": written}

    def take_all_cores(self) -> dict:
        """The cores of this process and of a child, after both have asked for all."""
        asked = range(os.cpu_count() or 1)
        os.sched_setaffinity(0, asked)
        program = f"import os; os.sched_setaffinity(0, {asked}); print(len(os.sched_getaffinity(0)))"
        child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return {"own": len(os.sched_getaffinity(0)), "child": int(child.stdout)}

    def wake(self) -> dict:
        """Ask for a timer and for a descriptor that continue this process; the errors' numbers."""
        import ctypes
        import fcntl

        libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
        refused = libc.timer_create(1, None, ctypes.byref(timer)) != 0
        read, _ = os.pipe()
        try:
            fcntl.fcntl(read, 10, 18)  # F_SETSIG, SIGCONT
        except OSError as error:
            return {"timer": ctypes.get_errno() if refused else 0, "descriptor": error.errno}
        return {"timer": ctypes.get_errno() if refused else 0, "descriptor": 0}

    def garbage(self, body: bytes) -> dict:
        for number in range(3, 64):
            try:
                os.write(number, body)
            except OSError:
                continue
        return {}

    def beat(self) -> dict:
        """Start a thread that counts; `beats` reads it."""
        import threading

        def count() -> None:
            while True:
                self.beats += 1
                time.sleep(0.001)

        threading.Thread(target=count, daemon=True).start()
        return {}

    def count(self) -> dict:
        return {"beats": self.beats}

    def spawn(self) -> dict:
        """A child in the same process group, which outlives its parent unless the group is ended."""
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        return {"child": child}

    def network(self) -> dict:
        import socket

        return {"interfaces": [name for _, name in socket.if_nameindex()]}

    def judge_memory(self, pid: int) -> dict:
        try:
            with open(f"/proc/{pid}/mem", "rb"):
                return {"readable": True}
        except OSError:
            return {"readable": False}


class Engine(Echo):
    """Takes what every side of a whole-model trial does."""

    def __init__(self, layers: list, device: str) -> None:
        super().__init__()


class Unbuildable:
    """Its overlay is there before it fails."""

    def __init__(self) -> None:
        self.overlay = Blames()
        raise ValueError("not today")


class Blames:
    def is_candidates(self, file: Path) -> bool:
        return False

    def advice(self, error: BaseException) -> None: ...

    def blame(self, error: BaseException) -> tuple:
        return ("candidate.py", 7)


class Abandoned:
    """A group whose second rank does not come, while the first one waits for it."""

    def __init__(self, before_it_is_made: bool) -> None:
        from fastkernels.runner.ranks import peer

        def fail(*_: object) -> None:
            raise ConnectionError("no such network")

        if before_it_is_made:
            peer.ctypes.CDLL = fail  # type: ignore[assignment]
        self.peer = peer.Peer(1, fail, [])
        time.sleep(600)
