"""What crosses borders: records that are read from files, sent between processes or stored in reports.

All are frozen pydantic models without torch, so that listing and scoring stay light. Units are in the names.
"""

from __future__ import annotations

from fastkernels.records.admission import AuditCheck, AuditReport, AuditRow, AuditTask
from fastkernels.records.base import (
    LEAST_NOISE,
    RANDOM_IDS,
    UNSTABLE_HALF_WIDTH,
    Contract,
    Device,
    DType,
    Printable,
    Record,
    Size,
    Skew,
    TokenPhase,
    default_size,
    is_unstable,
    least_noise,
    primary,
)
from fastkernels.records.capture import Capture, CapturedTokens
from fastkernels.records.case import REGISTRY, Batch, Case, Golden, Provenance, Routing, TensorSpec, View
from fastkernels.records.environment import Environment, NodeUse
from fastkernels.records.gate import GateLimits, GateReport, GateRow, GateSummary, GateVerdict, Look
from fastkernels.records.kernels import (
    CandidateFiles,
    Failure,
    Finding,
    Integrity,
    KernelReport,
    KernelRow,
    KernelShare,
    KernelSummary,
    Place,
    Profile,
    ProfiledKernel,
    Sanitized,
    Unclaimed,
)
from fastkernels.records.models import (
    EvalReport,
    MacroEval,
    ModelResult,
    Swap,
    UnfinishedModel,
    WorkloadResult,
)
from fastkernels.records.tuning import Behind, TunedRow, TuneReport, TuneSummary, Untimed

Report = KernelReport | EvalReport | GateReport | AuditReport

__all__ = [
    "LEAST_NOISE",
    "RANDOM_IDS",
    "REGISTRY",
    "UNSTABLE_HALF_WIDTH",
    "AuditCheck",
    "AuditReport",
    "AuditRow",
    "AuditTask",
    "Batch",
    "Behind",
    "CandidateFiles",
    "Capture",
    "CapturedTokens",
    "Case",
    "Contract",
    "DType",
    "Device",
    "Environment",
    "EvalReport",
    "Failure",
    "Finding",
    "GateLimits",
    "GateReport",
    "GateRow",
    "GateSummary",
    "GateVerdict",
    "Golden",
    "Integrity",
    "KernelReport",
    "KernelRow",
    "KernelShare",
    "KernelSummary",
    "Look",
    "MacroEval",
    "ModelResult",
    "NodeUse",
    "Place",
    "Printable",
    "Profile",
    "ProfiledKernel",
    "Provenance",
    "Record",
    "Report",
    "Routing",
    "Sanitized",
    "Size",
    "Skew",
    "Swap",
    "TensorSpec",
    "TokenPhase",
    "TuneReport",
    "TuneSummary",
    "TunedRow",
    "Unclaimed",
    "UnfinishedModel",
    "Untimed",
    "View",
    "WorkloadResult",
    "default_size",
    "is_unstable",
    "least_noise",
    "primary",
]
