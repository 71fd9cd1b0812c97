"""compute-sanitizer on one call: what it found, by kernel and line.

    memcheck    accesses out of bounds or misaligned        racecheck   hazards in shared memory
    initcheck   reads of what nobody wrote                  synccheck   barriers that not all threads reach

Every tensor is an allocation of its own there, since the caching allocator would hide what lies beyond one's
end. Code is compiled anew, by nvcc with lines.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from fastkernels.errors import MachineError
from fastkernels.measure.attribution import origin, qualified_name
from fastkernels.profiling import one_call
from fastkernels.profiling.tools import SANITIZER, under
from fastkernels.records import Case, Finding, Sanitized

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# What PyTorch itself asks the driver in vain is no finding.
OPTIONS = ("--show-backtrace", "device", "--print-limit", "1000", "--report-api-errors", "no")
# Space behind every tensor: else what lies beyond one's end is often the next one.
OPTIONS_OF = {"memcheck": ("--padding", "512")}
_MARK = "========="
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
# `kernel(float *)+0x90 in file.cu:20`, of some versions `kernel():0x90 in file.cu:20`
_KERNEL_FIRST = re.compile(r"(?P<kernel>.+?)(?:\+|:)0x[0-9a-f]+(?: in (?P<file>.+?):(?P<line>\d+))?(?= \[|$)")
# of older ones `0x90 in file.cu:20:kernel(float *)`, `0x90 in kernel(float *)`
_OFFSET_FIRST = re.compile(r"0x[0-9a-f]+ in (?:(?P<file>.+?):(?P<line>\d+):)?(?P<kernel>.+?)(?= \[|$)")
_RACE = re.compile(r"(?:(?P<level>\w+): )?Race reported between (?P<one>\w+) access at (?P<place>.+)")
_CONTINUED = (
    "at ",
    "by ",
    "and ",
    "Address ",
    "Device Frame",
    "Host Frame",
    "Saved host",
    "in ",
    "Barrier is",
)
_NO_FINDING = (
    "COMPUTE-SANITIZER",
    "ERROR SUMMARY",
    "RACECHECK SUMMARY",
    "LEAK SUMMARY",
    "Target application",
)


def sanitize(
    candidate: str, case: Case, layers: Sequence[Path], authored: Collection[str]
) -> list[Sanitized]:
    """One call under each tool. MachineError where compute-sanitizer is not there; what one of its tools
    could not do is its `problem`. `authored`: kernels that the candidate defines (loader/authored.py)."""
    path = SANITIZER.path()
    asked = one_call.request(case.model_dump_json(), [str(layer) for layer in layers], warm=False)
    found = []
    for tool in TOOLS:
        errors, findings, problem = None, (), None
        with tempfile.TemporaryDirectory(prefix="fk-sanitize-", ignore_cleanup_errors=True) as caches:
            try:
                done = under(
                    [path, "--tool", tool, *OPTIONS, *OPTIONS_OF.get(tool, ())],
                    one_call.__name__,
                    asked,
                    _environment(caches),
                )
                text = done.stdout + done.stderr
                errors, findings = counted(text), parsed(text, authored)
                problem = _problem(done, errors)
            except MachineError as error:
                problem = str(error)
        found.append(
            Sanitized(
                candidate=candidate,
                task=case.task,
                case=case.id,
                tool=tool,
                errors=errors,
                findings=findings,
                problem=problem,
            )
        )
    return found


def parsed(text: str, authored: Collection[str] = ()) -> tuple[Finding, ...]:
    """Findings with the same words at one place are one, the most frequent first."""
    counts: Counter[Finding] = Counter()
    block: list[str] = []
    for line in [*_lines(text), ""]:
        if line.startswith(_CONTINUED):
            block.append(line)
            continue
        if block and (found := _finding(block, authored)):
            counts[found] += 1
        block = [line] if line and not line.startswith(_NO_FINDING) else []
    return tuple(found.model_copy(update={"count": count}) for found, count in counts.most_common())


def _lines(text: str) -> list[str]:
    return [line[len(_MARK) :].strip() for line in text.splitlines() if line.startswith(_MARK)]


def _finding(block: list[str], authored: Collection[str]) -> Finding | None:
    """None for words without a place: of the tool itself."""
    what, *rest = block
    race = _RACE.match(what)
    places = [race["place"]] if race else [line[3:] for line in rest if line.startswith("at ")]
    frames = [line.partition(":")[2].strip() for line in rest if line.startswith("Device Frame")]
    found = [place for text in [*places, *frames] if (place := _place(text))]
    if not found:
        return None
    at = next((place for place in found if place[1]), found[0])  # the innermost with a line
    others = [f" and {line[4:].split()[0]}" for line in rest if line.startswith("and ") and race]
    if race:
        second = next(
            (p for line in rest if line.startswith("and ") and (p := _place(line.partition(" at ")[2]))), None
        )
        line = f", line {second[2]}" if second and second[2] else ""
        what = f"race between {race['one']}{others[0] if others else ''} access{line}"
    kernel = qualified_name(found[-1][0])  # the outermost frame: a device function is inlined into it
    return Finding(
        what=what.rstrip("."),
        kernel=kernel,
        file=at[1],
        line=at[2],
        authored=origin(found[-1][0], authored) == "authored",
    )


def _place(text: str) -> tuple[str, str | None, int | None] | None:
    """Kernel, file and line."""
    found = _OFFSET_FIRST.match(text) or _KERNEL_FIRST.match(text)
    if found is None:
        return None
    line = found["line"]
    return found["kernel"].strip(), found["file"], int(line) if line else None


def counted(text: str) -> int | None:
    """Errors, by the summary that every tool ends with; None without one."""
    found = _SUMMARY.search(text)
    return int(found[1]) if found else None


def _problem(done: subprocess.CompletedProcess[str], errors: int | None) -> str | None:
    """Why there is no answer, or only one about a part of the call."""
    if errors is None:
        return f"compute-sanitizer gave no summary: {_last(done.stdout + done.stderr)}"
    if errors == 0 and done.returncode:
        return f"nothing found until the call failed: {_last(done.stderr)}"
    return None


def _last(text: str) -> str:
    lines = (line.removeprefix(_MARK).strip(" =") for line in text.splitlines())
    return ([line for line in lines if line] or ["it said nothing"])[-1]


def _environment(caches: str) -> dict[str, str]:
    return {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "NVCC_APPEND_FLAGS": "-lineinfo",
        "TORCH_EXTENSIONS_DIR": f"{caches}/extensions",
        "TRITON_CACHE_DIR": f"{caches}/triton",
        "XDG_CACHE_HOME": f"{caches}/cache",
    }
