"""Settings of a whole process: read, and put back as they were."""

from __future__ import annotations

import pytest
import torch

from fastkernels.runner.inside import flags


@pytest.fixture(autouse=True)
def as_before():
    kept = flags.Kept()
    yield
    kept.put_back()


# Each setting, set otherwise than it was.
CHANGES = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "float32 precision": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "cudnn enabled": lambda: setattr(torch.backends.cudnn, "enabled", False),
    "cudnn benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "fp16 accumulation": lambda: torch._C._set_cublas_allow_fp16_accumulation(True),
    "fp16 reduced precision": lambda: setattr(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False
    ),
    "bf16 reduced precision": lambda: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
    "16-bit sums in attention": lambda: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
    "flash attention enabled": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "memory-efficient attention enabled": lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
    "plain attention enabled": lambda: torch.backends.cuda.enable_math_sdp(False),
    "cudnn attention enabled": lambda: torch.backends.cuda.enable_cudnn_sdp(False),
    "autocast on a CPU": lambda: torch.set_autocast_enabled("cpu", True),
    "denormals flushed": lambda: torch.set_flush_denormal(True),
    "gradients": lambda: torch.set_grad_enabled(False),
}


def test_what_is_set_by_two_of_torchs_interfaces_is_put_back() -> None:
    kept, before = flags.Kept(), flags.read()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert flags.read()["float32 matmul precision"] != before["float32 matmul precision"]
    kept.put_back()
    assert flags.read() == before


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_changed_is_named_and_put_back(name: str) -> None:
    kept, before = flags.Kept(), flags.read()
    CHANGES[name]()
    assert flags.read() != before
    assert name in kept.put_back()
    assert flags.read() == before
    assert kept.put_back() == []


def test_the_default_device_is_put_back() -> None:
    kept = flags.Kept()
    torch.set_default_device("meta")
    assert "default device" in kept.put_back()
    assert torch.empty(1).device.type == "cpu"
    assert torch.overrides._get_current_function_mode_stack() == [], "what a device that is set adds"
