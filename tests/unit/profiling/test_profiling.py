"""What Nsight Compute and compute-sanitizer print, by their documentation, and what is made of it; and a
trace of a model. Neither tool is needed: a program that prints a sample takes its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fastkernels import registry
from fastkernels.cli import main
from fastkernels.errors import MachineError
from fastkernels.loader.candidates import discover
from fastkernels.loader.materialize import Call
from fastkernels.profiling import ncu, of_report, one_call, sanitizer, tools
from fastkernels.records import KernelReport, Profile, ProfiledKernel
from fastkernels.report import exit_code, table

CASE = registry.cases("L1/rms_norm", "tiny", "llama")[0]
HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'  # noqa: E501


def csv_of(*launches: tuple[str, dict[str, str]]) -> str:
    lines = ["==PROF== Connected to process 7", "a candidate may print, too", HEAD]
    for number, (name, metrics) in enumerate(launches):
        kernel = (
            f'"{number}","7","python3.11","127.0.0.1","{name}","1","7","(256, 1, 1)","(32, 1, 1)","0","9.0"'
        )
        lines += [f'{kernel},"Command line profiler metrics","{m}","?","{v}"' for m, v in metrics.items()]
    return "\n".join([*lines, "==PROF== Disconnected from process 7"])


def counted(**changes: str) -> dict[str, str]:
    """Of a kernel that moves memory as fast as it goes."""
    found = {
        "gpu__time_duration.sum": "21,504",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": "84.2",
        "dram__bytes.sum.per_second": "4,012,345,678,901.2",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": "55.1",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": "21.5",
        "sm__warps_active.avg.pct_of_peak_sustained_active": "71",
        "sm__maximum_warps_per_active_cycle_pct": "75",
        "launch__registers_per_thread": "40",
        "launch__waves_per_multiprocessor": "7.76",
        "launch__occupancy_limit_registers": "6",
        "launch__occupancy_limit_shared_mem": "32",
        "launch__occupancy_limit_warps": "8",
    }
    assert set(found) == set(ncu.METRICS)
    return found | {next(name for name in found if name.startswith(key)): v for key, v in changes.items()}


def test_kernels_of_ncu() -> None:
    name = "void (anonymous namespace)::scale<float, 4>(float *, int)"
    small = counted(gpu__time="1,000", dram__throughput="n/a", dram__bytes="n/a")
    first, second = ncu.parsed(csv_of((name, counted()), ("copy_kernel", small)))
    assert (first.name, first.us, first.dram_pct) == ("scale", 21.504, 84.2)
    assert first.dram_gb_s == pytest.approx(4012.3, abs=0.1)
    assert (first.registers, first.occupancy_limited_by) == (40, "registers")
    assert (second.name, second.us, second.dram_pct) == ("copy_kernel", 1.0, None)
    assert ncu.limit([first]) == "limited by memory bandwidth (4012 GB/s): 84 % of its peak"
    assert ncu.limit([first, second]).startswith("scale, 96 % of it: limited by memory bandwidth")
    found = Profile(kernels=(first, second), limit="x")
    assert (found.us, found.mean("dram_pct"), found.mean("compute_pct")) == (22.504, None, 21.5)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sm__throughput": "91"}, "limited by the SMs: 91 % of its peak"),
        (
            {"dram__throughput": "30", "launch__waves": "0.24"},
            "too small for the device: 0.24 waves of blocks",
        ),
        (
            {"dram__throughput": "30", "sm__maximum_warps": "25", "launch__registers": "168"},
            "latency: registers (168 a thread) allow 25 % of the warps",
        ),
        (
            {"dram__throughput": "30"},
            "latency: warps wait; no unit reaches 60 % of its peak (most: L2, 55 %)",
        ),
    ],
)
def test_what_limits_a_kernel(changes: dict[str, str], told: str) -> None:
    assert ncu.limit(ncu.parsed(csv_of(("k", counted(**changes))))).startswith(told)


MEMCHECK = """\
========= COMPUTE-SANITIZER
output of the program itself
========= Invalid __global__ write of size 4 bytes
=========     at ns::scale<float>(float *, int)+0x160 in /tmp/mine/scale.cu:14
=========     by thread (0,0,0) in block (3,0,0)
=========     Address 0x7f6510c00001 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6510c00000 of size 4 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at ns::scale<float>(float *, int)+0x160 in /tmp/mine/scale.cu:14
=========     by thread (1,0,0) in block (3,0,0)
=========     Address 0x7f6510c00005 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call
=========     Saved host backtrace up to driver entry point at error
=========
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum(int *, int *)+0x90 in block_error.cu:20
=========     and Read access at sum(int *, int *)+0x1a0 in block_error.cu:27 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in warp.
=========     at __syncwarp(unsigned int)+0xe0 in sm_30_intrinsics.hpp:110
=========     by thread (19,0,0) in block (0,0,0)
=========         Device Frame: sum(int *, int *)+0xb0 in divergent.cu:61
=========
========= ERROR SUMMARY: 1 error
"""
# Of other versions: the offset first; a colon before it; no lines.
OTHERS = """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x250 in /home/me/add.cu:41:add(int*)
=========     by thread (16,0,0) in block (0,0,0)
========= Invalid __shared__ read of size 8 bytes
=========     at unaligned():0x160 in memcheck_demo.cu:6
========= Invalid __local__ read of size 1 bytes
=========     at 0x70 in triton_poi_fused(float*)
========= Invalid __global__ read of size 2 bytes
=========     at rms_norm_kernel+0x15520
========= ERROR SUMMARY: 4 errors
"""


def told(text: str) -> list[tuple]:
    found = sanitizer.parsed(text, {"scale", "sum"})
    return [(f.what, f.kernel, f.file, f.line, f.count, f.authored) for f in found]


def test_findings_of_compute_sanitizer() -> None:
    invalid = "Invalid __global__ write of size 4 bytes"
    assert told(MEMCHECK) == [(invalid, "ns::scale", "/tmp/mine/scale.cu", 14, 2, True)]
    race = "race between Write and Read access, line 27"
    assert told(RACECHECK) == [(race, "sum", "block_error.cu", 20, 1, True)]
    barrier = "Barrier error detected. Divergent thread(s) in warp"
    assert told(SYNCCHECK) == [(barrier, "sum", "sm_30_intrinsics.hpp", 110, 1, True)]
    assert [one[1:] for one in told(OTHERS)] == [
        ("add", "/home/me/add.cu", 41, 1, False),
        ("unaligned", "memcheck_demo.cu", 6, 1, False),
        ("triton_poi_fused", None, None, 1, False),
        ("rms_norm_kernel", None, None, 1, False),
    ]
    clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    assert told(clean) == []
    counts = [sanitizer.counted(text) for text in (MEMCHECK, RACECHECK, clean, "========= no device")]
    assert counts == [3, 1, 0, None]


@pytest.mark.parametrize("warm", [False, True])
def test_a_call_is_made(monkeypatch: pytest.MonkeyPatch, warm: bool) -> None:
    run, results = Call.run, []
    monkeypatch.setattr(Call, "run", lambda call: results.append(run(call)))
    one_call.run(one_call.request(CASE.model_dump_json(), [], warm), device="cpu")
    assert len(results) == 1 + warm
    assert all(result is not None for result in results)


# ---------------------------------------------------------------- behind the verdicts of a report


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Programs on PATH that note how they were called and print a sample."""

    def install(program: str, says: str, status: int = 0, errs: str = "") -> Path:
        file = tmp_path / program
        file.with_suffix(".says").write_text(says)
        calls = f'echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $@" >> {tmp_path}/calls'
        file.write_text(
            f"#!/bin/sh\n{calls}\ncat {file.with_suffix('.says')}\necho '{errs}' >&2\nexit {status}\n"
        )
        file.chmod(0o755)
        return tmp_path / "calls"

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return install


@pytest.fixture
def judged(tmp_path: Path, kernel_report: KernelReport):
    """A report of a candidate `mine`, and its files."""
    file = tmp_path / "mine" / "L1" / "rms_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text('CUDA = "__global__ void scale(float* x) {}"\n')
    rows = [row.model_copy(update={"case": CASE.id}) for row in kernel_report.rows[:1]]
    summary = kernel_report.summary.model_copy(update={"failed": 0})
    sets = {found.name: found for found in discover([tmp_path / "mine"])}
    return kernel_report.model_copy(update={"rows": tuple(rows), "summary": summary}), sets


def test_columns_of_ncu(installed, judged) -> None:
    calls = installed("ncu", csv_of(("scale", counted())))
    report, sets = judged
    found = of_report.with_profiles(report, sets, lambda step: None)
    assert found.rows[0].profile is not None
    assert found.rows[0].profile.kernels[0].name == "scale"
    assert "-m fastkernels.profiling.one_call" in calls.read_text()
    text = table.text(found)
    assert "limited by memory bandwidth (4012 GB/s): 84 % of its peak" in text
    assert KernelReport.model_validate_json(found.model_dump_json(by_alias=True)) == found
    unstable = report.rows[0].model_copy(update={"verdict": "UNSTABLE"})
    found = of_report.with_profiles(report.model_copy(update={"rows": (unstable,)}), sets, print)
    assert found.rows[0].profile is None
    assert any("fk profile --target L1/rms_norm --candidates" in note for note in found.notes)
    installed("ncu", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")
    assert any("run as root" in note for note in of_report.with_profiles(report, sets, print).notes)
    installed("ncu", "==PROF== nothing", status=1)
    assert any("no kernel (exit status 1)" in n for n in of_report.with_profiles(report, sets, print).notes)


def test_findings_behind_the_verdicts(installed, judged) -> None:
    report, sets = judged
    assert exit_code(report) == 0
    calls = installed("compute-sanitizer", MEMCHECK, status=1)
    found = of_report.with_sanitizer(report, sets, lambda step: None)
    assert [one.tool for one in found.sanitized] == list(sanitizer.TOOLS)
    assert all(line.startswith("1 --tool") for line in calls.read_text().splitlines())
    assert exit_code(found) == 1, "a kernel of the candidate's own"
    line = "Invalid __global__ write of size 4 bytes, kernel ns::scale at /tmp/mine/scale.cu:14 (2 times)"
    assert line in table.text(found)
    assert "memcheck: 3 errors, 2 of them by kernel and line" in table.text(found)
    clean = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    installed("compute-sanitizer", clean, status=1, errs="CUDA error: an illegal memory access")
    crashed = of_report.with_sanitizer(report, sets, lambda step: None).sanitized[0]
    assert crashed.problem == "nothing found until the call failed: CUDA error: an illegal memory access"
    installed("compute-sanitizer", OTHERS)
    others = of_report.with_sanitizer(report, sets, lambda step: None)
    assert exit_code(others) == 0
    assert "no kernel of the candidate's own" in table.text(others)
    installed("compute-sanitizer", "========= Error: no device\n", status=1)
    broken = of_report.with_sanitizer(report, sets, lambda step: None).sanitized[0]
    assert broken.problem == "compute-sanitizer gave no summary: Error: no device"


def test_a_missing_tool_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.glob, "glob", lambda pattern: [])
    monkeypatch.setenv("PATH", "/nowhere")
    for tool in (tools.NCU, tools.NSYS, tools.SANITIZER):
        with pytest.raises(MachineError, match=rf"{tool.program} is not on PATH.*apt-get install cuda-"):
            tool.path()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["profile"], 2, "Say what to profile"),
        (["profile", "--target", "rms_norm", "--model", "llama"], 2, "Say what to profile"),
        (["profile", "--target", "rms_norm", "--nsys"], 2, "--nsys: --target profiles calls"),
        (["profile", "--target", "rmsnorm", "--device", "cpu"], 2, "L1/rms_norm"),
        (["profile", "--target", "rms_norm", "--device", "cpu"], 3, "fk profile --model M"),
        (["profile", "--model", "llama", "--device", "cpu", "--out", "a.txt"], 2, ".json or .json.gz"),
        (["profile", "--model", "llama", "--device", "cpu", "--nsys"], 3, "leave it out"),
        (["kernels", "--self-test", "--sanitize", "--device", "cpu"], 2, "is for candidates"),
        (["kernels", "--profile", "ncu", "--device", "cpu"], 3, "it needs a CUDA device"),
    ],
)
def test_bad_requests(arguments: list[str], code: int, told: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, told in result.stderr) == (code, True), result.stderr


@pytest.mark.parametrize(
    "model", ["llama", *(pytest.param(name, marks=pytest.mark.whole) for name in ("dinov3", "qwen2_vl"))]
)
def test_a_trace_of_a_model(tmp_path: Path, model: str) -> None:
    out = tmp_path / "run.trace.json.gz"
    arguments = ["--requests", "1", "--input-len", "8", "--output-len", "2", "--quiet", "--device", "cpu"]
    result = CliRunner().invoke(main, ["profile", "--model", model, "--out", str(out), *arguments])
    assert result.exit_code == 0, result.output
    assert "ui.perfetto.dev" in result.stdout
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert any(event.get("name") in ("aten::mm", "aten::addmm") for event in events)


def test_what_a_row_keeps_is_printable() -> None:
    assert ProfiledKernel(name="a\x1b[31mb", us=1.0).name == "ab"
