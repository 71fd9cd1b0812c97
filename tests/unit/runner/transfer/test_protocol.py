"""Frames between judge and worker: what arrives, and what a hostile worker cannot do with them."""

import math
import os
import pickle
import socket
import struct
import threading
import time

import pytest

from fastkernels.runner.transfer import protocol
from fastkernels.runner.transfer.protocol import BrokenReply, ErrorReport, Reply, ReplyTimeout, Request


@pytest.fixture
def channel():
    judge, worker = socket.socketpair()
    with judge, worker:
        yield judge, worker


def frame(body: bytes) -> bytes:
    return b"FKv1" + struct.pack("!Q", len(body)) + body


def receive(judge: socket.socket, request_id: int = 7, seconds: float = 5, died=lambda: False) -> Reply:
    return protocol.receive_reply(judge, request_id, time.monotonic() + seconds, died)


def test_the_first_channel_that_speaks_is_told_and_so_is_an_end(channel) -> None:
    judge, worker = channel
    other, silent = socket.socketpair()
    ended, process = os.pipe()

    def wait(seconds: float = 5) -> socket.socket:
        return protocol.Waiter((other, judge), time.monotonic() + seconds, lambda: False, ended)()

    try:
        with other, silent:
            with pytest.raises(ReplyTimeout):
                wait(0.05)
            threading.Timer(0.05, worker.sendall, (b"here",)).start()
            assert wait() is judge
            assert judge.recv(4) == b"here"
            os.close(process)
            with pytest.raises(BrokenReply, match="ended"):
                wait()
    finally:
        os.close(ended)


def test_a_request_arrives_with_its_descriptors(channel, tmp_path) -> None:
    judge, worker = channel
    (tmp_path / "file").write_text("contents")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    request = Request("attach", {"name": "x", "values": (1, 2)}, descriptors=1)
    protocol.send_request(judge, request, [descriptor])
    received, descriptors = protocol.receive_request(worker)
    assert (received.do, received.arguments, received.id) == (
        "attach",
        {"name": "x", "values": (1, 2)},
        request.id,
    )
    assert os.read(descriptors[0], 100) == b"contents"
    os.close(descriptor)
    os.close(descriptors[0])


def test_a_large_request_arrives_whole(channel) -> None:
    judge, worker = channel
    sent = threading.Thread(
        target=protocol.send_request, args=(judge, Request("x", {"blob": b"1" * 3_000_000}))
    )
    sent.start()
    received, _ = protocol.receive_request(worker)
    sent.join()
    assert len(received.arguments["blob"]) == 3_000_000


def test_the_end_of_the_judge_is_an_end_of_file(channel) -> None:
    judge, worker = channel
    judge.close()
    with pytest.raises(EOFError):
        protocol.receive_request(worker)


def test_a_reply_arrives(channel) -> None:
    judge, worker = channel
    protocol.send_reply(worker, Reply(id=7, value={"ns": 12, "names": ["a"]}))
    assert receive(judge).value == {"ns": 12, "names": ["a"]}
    protocol.send_reply(worker, Reply(id=8, error=ErrorReport(kind="ValueError", message="no", line=3)))
    assert receive(judge, 8).error == ErrorReport(kind="ValueError", message="no", line=3)


def test_numbers_that_are_not_finite_arrive(channel) -> None:
    judge, worker = channel
    protocol.send_reply(worker, Reply(id=7, value={"nan": math.nan, "low": -math.inf}))
    value = receive(judge).value
    assert value is not None
    assert math.isnan(value["nan"])
    assert value["low"] == -math.inf


def test_request_ids_cannot_be_guessed() -> None:
    ids = {Request("x", {}).id for _ in range(100)}
    assert len(ids) == 100
    assert max(ids) > 2**40


class Exploit:
    def __reduce__(self):
        return os.mkdir, ("exploited",)


def test_a_reply_is_never_unpickled(channel, tmp_path, monkeypatch) -> None:
    judge, worker = channel
    monkeypatch.chdir(tmp_path)
    worker.sendall(frame(pickle.dumps(Exploit())))
    with pytest.raises(BrokenReply, match="not a reply"):
        receive(judge)
    assert not (tmp_path / "exploited").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"id": 7}',
        b'{"id": 7, "value": 3}',
        b'{"id": "7", "value": {}}',
        b'{"id": 7, "value": {}, "verdict": "PASSED"}',
        b'{"id": 7, "value": {}, "error": {"kind": "A", "message": "b"}}',
        b'{"id": 8, "value": {}}',
        b"[" * 100_000,
        b'{"id": 7, "value": {"a": \xff}}',
    ],
)
def test_what_is_no_reply_to_this_request_is_broken(channel, body: bytes) -> None:
    judge, worker = channel
    worker.sendall(frame(body))
    with pytest.raises(BrokenReply):
        receive(judge)


@pytest.mark.parametrize("raw", [b"PASSED" * 4, b"FKv1" + struct.pack("!Q", 1 << 60)])
def test_garbage_and_huge_lengths_are_broken(channel, raw: bytes) -> None:
    judge, worker = channel
    worker.sendall(raw)
    with pytest.raises(BrokenReply):
        receive(judge)


def test_a_closed_channel_is_broken(channel) -> None:
    judge, worker = channel
    worker.sendall(b"FKv1")
    worker.close()
    with pytest.raises(BrokenReply, match="closed"):
        receive(judge)


def test_silence_times_out_and_so_does_half_a_frame(channel) -> None:
    judge, worker = channel
    with pytest.raises(ReplyTimeout):
        receive(judge, seconds=0.05)
    worker.sendall(b"FKv1")
    begin = time.monotonic()
    with pytest.raises(ReplyTimeout):
        receive(judge, seconds=0.05)
    assert time.monotonic() - begin < 2


def test_a_dead_process_is_noticed_while_somebody_else_holds_the_channel(channel) -> None:
    judge, _ = channel
    with pytest.raises(BrokenReply, match="ended"):
        receive(judge, seconds=30, died=lambda: True)
