"""Nsight Compute on one call: what each kernel reaches of the device, and what limits the call.

Clocks are left as they are and caches are flushed, as where the judge times. Metrics are those of the
sections SpeedOfLight, Occupancy and LaunchStats, by name (docs.nvidia.com/nsight-compute, metrics reference).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from fastkernels.errors import MachineError
from fastkernels.measure.attribution import qualified_name
from fastkernels.profiling import one_call
from fastkernels.profiling.tools import NCU, under
from fastkernels.records import Case, Profile, ProfiledKernel

_TIME = "gpu__time_duration.sum"
_DRAM, _DRAM_RATE = "dram__throughput.avg.pct_of_peak_sustained_elapsed", "dram__bytes.sum.per_second"
_L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
_SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_RESIDENT = "sm__warps_active.avg.pct_of_peak_sustained_active"
_MOST_RESIDENT = "sm__maximum_warps_per_active_cycle_pct"
_REGISTERS, _WAVES = "launch__registers_per_thread", "launch__waves_per_multiprocessor"
_BLOCKS = {  # blocks of an SM that each of these allows
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps of a block": "launch__occupancy_limit_warps",
}
METRICS = (
    _TIME,
    _DRAM,
    _DRAM_RATE,
    _L2,
    _SM,
    _RESIDENT,
    _MOST_RESIDENT,
    _REGISTERS,
    _WAVES,
    *_BLOCKS.values(),
)
OPTIONS = (
    "--csv", "--print-units", "base", "--profile-from-start", "off", "--clock-control", "none",
    "--cache-control", "all", "--metrics", ",".join(METRICS),
)  # fmt: skip
BUSY_PCT = 60.0  # of its peak: above it a unit is what limits (the profiling guide's own threshold)
_FEW_WARPS_PCT = 50.0
_NOT_ALLOWED = "ERR_NVGPUCTRPERM"


def profile(case: Case, layers: Sequence[Path]) -> Profile:
    """One call of a case, with candidates over the baseline. MachineError where the tool is not there, or may
    not or cannot profile."""
    asked = one_call.request(case.model_dump_json(), [str(layer) for layer in layers], warm=True)
    done = under([NCU.path(), *OPTIONS], one_call.__name__, asked)
    said = done.stdout + done.stderr
    if _NOT_ALLOWED in said:
        raise MachineError(
            "ncu may not read this GPU's counters: run as root, or let the administrator load the driver "
            "with NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
        )
    kernels = parsed(done.stdout)
    if done.returncode or not kernels:
        last = "\n  ".join(said.strip().splitlines()[-4:])
        raise MachineError(
            f"{case.task} {case.id}: ncu profiled no kernel (exit status {done.returncode}):\n  {last}"
        )
    return Profile(kernels=tuple(kernels), limit=limit(kernels))


def parsed(text: str) -> list[ProfiledKernel]:
    """Kernels in the order of their launches, from `ncu --csv --metrics`: a line for each kernel and metric,
    among lines of other kinds."""
    table = [line for line in text.splitlines() if line.startswith('"')]
    launches: dict[str, dict[str, str]] = {}
    for record in csv.DictReader(io.StringIO("\n".join(table))):
        launch = launches.setdefault(record["ID"], {"": record["Kernel Name"]})
        launch[record["Metric Name"]] = record["Metric Value"]
    return [_kernel(launch) for launch in launches.values()]


def _kernel(launch: dict[str, str]) -> ProfiledKernel:
    def value(name: str) -> float | None:
        try:
            return float(launch[name].replace(",", ""))
        except (KeyError, ValueError):  # `n/a`, or a metric that this GPU has not
            return None

    blocks = {what: most for what, name in _BLOCKS.items() if (most := value(name)) is not None}
    return ProfiledKernel(
        name=qualified_name(launch[""]),
        us=(value(_TIME) or 0.0) / 1e3,
        dram_pct=value(_DRAM),
        dram_gb_s=None if (rate := value(_DRAM_RATE)) is None else rate / 1e9,
        l2_pct=value(_L2),
        compute_pct=value(_SM),
        occupancy_pct=value(_RESIDENT),
        occupancy_limit_pct=value(_MOST_RESIDENT),
        occupancy_limited_by=min(blocks, key=lambda what: blocks[what], default=None),
        registers=None if (count := value(_REGISTERS)) is None else int(count),
        waves=value(_WAVES),
    )


def limit(kernels: Sequence[ProfiledKernel]) -> str:
    """What limits the call, in one sentence: of the kernel that takes most of its time."""
    longest = max(kernels, key=lambda kernel: kernel.us)
    total = sum(kernel.us for kernel in kernels)
    who = (
        "" if len(kernels) == 1 or not total else f"{longest.name}, {100 * longest.us / total:.0f} % of it: "
    )
    return who + _limit(longest)


def _limit(kernel: ProfiledKernel) -> str:
    rate = "" if kernel.dram_gb_s is None else f" ({kernel.dram_gb_s:.0f} GB/s)"
    units = {
        f"memory bandwidth{rate}": kernel.dram_pct,
        "L2": kernel.l2_pct,
        "the SMs": kernel.compute_pct,
    }
    busy = {unit: pct for unit, pct in units.items() if pct is not None}
    if not busy:
        return "ncu counted no unit of this GPU"
    unit = max(busy, key=lambda name: busy[name])
    if busy[unit] >= BUSY_PCT:
        return f"limited by {unit}: {busy[unit]:.0f} % of its peak"
    none = f"no unit reaches {BUSY_PCT:.0f} % of its peak (most: {unit}, {busy[unit]:.0f} %)"
    if kernel.waves is not None and kernel.waves < 1:
        return f"too small for the device: {kernel.waves:.2f} waves of blocks; {none}"
    most = kernel.occupancy_limit_pct
    if most is not None and most < _FEW_WARPS_PCT and kernel.occupancy_limited_by:
        held = f" ({kernel.registers} a thread)" if kernel.occupancy_limited_by == "registers" else ""
        return f"latency: {kernel.occupancy_limited_by}{held} allow {most:.0f} % of the warps; {none}"
    return f"latency: warps wait; {none}"
