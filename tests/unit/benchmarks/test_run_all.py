"""Parts on the GPUs of a machine: their order, what is left out, and what interrupts them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_what_would_not_end_in_time_is_passed_over(run_all, jobs, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(run_all.time, "monotonic", lambda: now[0])
    parts = [jobs.Part(name, seconds, ()) for name, seconds in (("long", 90), ("short", 20), ("tiny", 5))]
    served = []
    for part in run_all.Queue(list(parts), within=100).of(several_gpus=False):
        served.append(part.name)
        now[0] += part.seconds
    assert served == ["long", "tiny"]
    everything = run_all.Queue(list(parts), within=None).of(several_gpus=False)
    assert [part.name for part in everything] == ["long", "short", "tiny"]


def test_a_whole_report_is_not_made_again(run_all, jobs, tmp_path, monkeypatch, capsys) -> None:
    (first, second, *_), name = jobs.JOBS["self_test_llama"].parts, "self_test_llama"
    (tmp_path / f"{first.name}.json").write_text('{"complete": true}')
    (tmp_path / f"{second.name}.json").write_text('{"complete": false}')
    ran: list[str] = []
    monkeypatch.setattr(run_all, "_run", lambda part, gpu, out: ran.append(part.name))
    command = ["run_all.py", str(tmp_path), "--jobs", name, "--resume", "--gpus", "0"]
    monkeypatch.setattr("sys.argv", command)
    run_all.main()
    assert first.name not in ran
    assert {second.name} < set(ran)
    assert "not joined" in capsys.readouterr().out


@pytest.mark.parametrize("join", ["sys.exit(3)", "open(sys.argv[-1], 'w').write('{'); sys.exit(3)"])
def test_what_was_joined_before_is_not_taken_for_what_could_not_be(
    run_all, jobs, monkeypatch, tmp_path, capsys, join: str
) -> None:
    part = jobs.Part("part", 60, ("-c", "import sys; open(sys.argv[-1], 'w').write('{}')"))
    monkeypatch.setitem(jobs.JOBS, "two", jobs.Job((part,), ("-c", f"import sys; {join}")))
    (tmp_path / "two.json").write_text("of an earlier run")
    monkeypatch.setattr("sys.argv", ["run_all", str(tmp_path), "--jobs", "two", "--gpus", "7"])
    run_all.main()
    assert "two: not joined, exit 3" in capsys.readouterr().out
    assert not (tmp_path / "two.json").exists()


def test_a_whole_with_failures_is_joined(run_all, jobs, monkeypatch, tmp_path, capsys) -> None:
    part = jobs.Part("part", 60, ("-c", "import sys; open(sys.argv[-1], 'w').write('{}')"))
    join = "import sys; open(sys.argv[-1], 'w').write('{}'); sys.exit(1)"
    monkeypatch.setitem(jobs.JOBS, "two", jobs.Job((part,), ("-c", join)))
    monkeypatch.setattr("sys.argv", ["run_all", str(tmp_path), "--jobs", "two", "--gpus", "7"])
    run_all.main()
    assert f"two: {tmp_path / 'two.json'}" in capsys.readouterr().out
    assert (tmp_path / "two.json").exists()


def test_parts_are_chosen_by_name(run_all, tmp_path, monkeypatch, capsys) -> None:
    ran: list[str] = []
    monkeypatch.setattr(run_all, "_run", lambda part, gpu, out: ran.append(part.name))
    asked = ["run_all.py", str(tmp_path), "--jobs", "self_test", "--gpus", "0", "--parts"]
    monkeypatch.setattr("sys.argv", [*asked, "*gla*", "*flux_level_2"])
    run_all.main()
    assert sorted(ran) == ["self_test_flux_level_2", "self_test_gla_level_1", "self_test_gla_level_2"]
    monkeypatch.setattr("sys.argv", [*asked, "*glo*"])
    with pytest.raises(SystemExit):
        run_all.main()
    assert "no part of self_test is called *glo*" in capsys.readouterr().err


def test_lanes_serve_one_gpu_beside_each_other(run_all, jobs, monkeypatch, tmp_path, capsys) -> None:
    """Each waits for the other three."""
    wait = (
        "import sys, time, pathlib; out = pathlib.Path(sys.argv[-1]); out.write_text('{}'); "
        "[time.sleep(0.01) for _ in range(6000) if len(list(out.parent.glob('part_*.json'))) < 4]; "
        "sys.exit(len(list(out.parent.glob('part_*.json'))) < 4)"
    )
    parts = tuple(jobs.Part(f"part_{n}", 60, ("-c", wait)) for n in range(4))
    monkeypatch.setitem(jobs.JOBS, "waits", jobs.Job(parts, ("-c", "")))
    command = ["run_all", str(tmp_path), "--jobs", "waits", "--gpus", "7", "--lanes", "4"]
    monkeypatch.setattr("sys.argv", command)
    run_all.main()
    assert capsys.readouterr().out.count("exit 0, ") == 4


def test_what_needs_two_gpus_has_both_before_the_others_begin(
    run_all, jobs, monkeypatch, tmp_path, capsys
) -> None:
    note = (
        "import os, sys, pathlib; out = pathlib.Path(sys.argv[-1]); out.write_text('{}'); "
        "line = out.stem + ' ' + os.environ['CUDA_VISIBLE_DEVICES'] + chr(10); "
        "(out.parent / 'order').open('a').write(line)"
    )
    parts = (jobs.Part("alone", 9, ("-c", note)), jobs.Part("pair", 5, ("-c", note), gpus=2))
    monkeypatch.setitem(jobs.JOBS, "both", jobs.Job(parts, ("-c", "")))
    monkeypatch.setattr("sys.argv", ["run_all", str(tmp_path), "--jobs", "both", "--gpus", "3,5"])
    run_all.main()
    first, second = (tmp_path / "order").read_text().splitlines()
    assert first == "pair 3,5"
    assert second.startswith("alone ")
    monkeypatch.setattr("sys.argv", ["run_all", str(tmp_path / "one"), "--jobs", "both", "--gpus", "3"])
    run_all.main()
    assert "pair: left out, it needs 2 GPUs and here are 1" in capsys.readouterr().out
    assert (tmp_path / "one" / "order").read_text() == "alone 3\n"


def test_parts_come_in_the_order_in_which_they_are_named(run_all, tmp_path, monkeypatch, capsys) -> None:
    names = ["*gla_level_2", "*flux*"]
    command = ["run_all", str(tmp_path), "--jobs", "self_test", "--list", "--parts", *names]
    monkeypatch.setattr("sys.argv", command)
    run_all.main()
    first, *others = capsys.readouterr().out.splitlines()
    assert "--architecture gla --level 2" in first
    assert len(others) == 2
    assert all("--architecture flux" in line for line in others)


WAITS = """
import pathlib, sys, time
out = pathlib.Path(sys.argv[-1])
out.with_suffix(".began").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    out.write_text("interrupted")
"""


def test_who_is_interrupted_interrupts_the_part_that_runs_and_starts_no_other(run_all, tmp_path) -> None:
    """In the background of a shell, too, where SIGINT is ignored."""
    program = f"""
import signal, sys
sys.path.insert(0, {str(Path(run_all.__file__).parent)!r})
signal.signal(signal.SIGINT, signal.SIG_IGN)
import jobs, run_all
parts = tuple(jobs.Part(name, 60, ("-c", {WAITS!r})) for name in ("one", "two"))
jobs.JOBS["waits"] = jobs.Job(parts, ("-c", ""))
sys.argv = ["run_all", {str(tmp_path)!r}, "--jobs", "waits", "--gpus", "7"]
run_all.heed_interrupts()
run_all.main()
"""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        while not (tmp_path / "one.began").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert (tmp_path / "one.json").read_text() == "interrupted"
    assert not (tmp_path / "two.began").exists()
