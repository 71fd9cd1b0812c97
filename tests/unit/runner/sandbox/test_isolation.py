"""What a worker's surroundings hold."""

import ctypes
import os
import socket
from pathlib import Path

import pytest

from fastkernels.runner.sandbox import isolation
from fastkernels.runner.sandbox.isolation import HiddenMemory, Scratch, common

OUTER = {
    "PATH": "/bin",
    "CUDA_VISIBLE_DEVICES": "1",
    "HF_TOKEN": "t",
    "AWS_SECRET_ACCESS_KEY": "k",
    "FK_SEED": "1",
    "HOME": "/home/me",
    "MLFLOW_TRACKING_URI": "http://x",
}


def test_only_listed_variables_pass() -> None:
    scratch = Scratch.create()
    environment = scratch.environment(threads=2, outer=OUTER)
    assert environment["PATH"] == "/bin"
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "FK_SEED", "MLFLOW_TRACKING_URI"} & set(environment)
    assert environment["HF_HUB_CACHE"] == "/home/me/.cache/huggingface/hub"
    assert environment["HF_HUB_OFFLINE"] == "1"
    scratch.remove()


def test_a_candidates_caches_are_its_own_and_the_baselines_are_shared(tmp_path: Path) -> None:
    ours, theirs = Scratch.create(shared=tmp_path), Scratch.create()
    assert ours.environment(1, OUTER)["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert ours.environment(1, OUTER)["FLASHINFER_WORKSPACE_BASE"] == "/home/me"
    assert theirs.environment(1, OUTER)["TRITON_CACHE_DIR"] == str(theirs.root / "cache" / "triton")
    assert "FLASHINFER_WORKSPACE_BASE" not in theirs.environment(1, OUTER)
    for scratch in (ours, theirs):
        scratch.remove()
        assert not scratch.root.exists()
    assert tmp_path.exists()


def test_the_end_of_the_output_is_kept() -> None:
    scratch = Scratch.create()
    assert scratch.printed() == ""
    scratch.output.write_bytes(b"x" * 10_000 + b"\xff the end")
    assert scratch.printed(last=10).endswith(" the end")
    scratch.remove()


def test_a_link_in_place_of_the_output_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the judge")
    scratch = Scratch.create()
    scratch.output.write_text("printed")
    scratch.output.unlink()
    scratch.output.symlink_to(tmp_path / "secret")
    assert scratch.printed() == "printed"
    scratch.remove()
    assert scratch.printed() == ""
    scratch.remove()


def test_hidden_memory_is_visible_again_afterwards() -> None:
    libc = ctypes.CDLL(None)
    before = libc.prctl(3, 0, 0, 0, 0)
    with HiddenMemory() as memory:
        assert libc.prctl(3, 0, 0, 0, 0) == (0 if memory.hidden else before)
    with HiddenMemory() as memory:
        memory.reveal()
        assert not memory.hidden
        assert libc.prctl(3, 0, 0, 0, 0) == before
    assert libc.prctl(3, 0, 0, 0, 0) == before


def test_processes_of_a_new_namespace_meet_on_its_loopback() -> None:
    """Asked in a fork, which stays there."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"refused"
        try:
            if isolation.unshare():
                answer = _met()
        except BaseException as error:
            answer = repr(error).encode()
        finally:
            os.write(theirs, answer)
            os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    answer = os.read(ours, 1000).decode()
    os.close(ours)
    if answer == "refused":
        pytest.skip("this kernel gives no namespaces")
    assert answer == "hello over lo"


def _met() -> bytes:
    interfaces = " ".join(name for _, name in socket.if_nameindex())
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname(), timeout=5).sendall(b"hello over ")
    other, _ = server.accept()
    return other.recv(100) + interfaces.encode()


def test_a_namespace_without_a_loopback_separates_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("no such request")

    class Library:
        def unshare(self, flags: int) -> int:
            return 0

    monkeypatch.setattr(isolation.ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(isolation, "_raise_loopback", refuse)
    assert isolation.unshare()


def test_levels_are_those_that_every_process_reached() -> None:
    assert common(None, ("a", "b")) == ("a", "b")
    assert common(("a", "b", "c"), ("c", "a")) == ("a", "c")
    assert common((), ("a",)) == ()
