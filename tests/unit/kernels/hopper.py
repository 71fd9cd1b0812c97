"""Compiling Triton kernels for Hopper without a GPU."""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
MOST_SHARED = 227 * 1024  # bytes that a block of an H100 or H200 may have


def compiled(
    kernel: Any, types: dict[str, str], constants: dict, options: dict, divisible: tuple[str, ...] = ()
) -> Any:
    """The kernel as a launch specialises it where pointers are aligned and strides, and the numbers
    `divisible`, are multiples of 16."""
    signature, constant_at, attributes = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], constant_at[(index,)] = "constexpr", constants[name]
            continue
        signature[name] = types.get(name, "i32")
        if signature[name].startswith("*") or "stride" in name or name in divisible:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constant_at, attributes)
    return triton.compile(source, target=HOPPER, options=options)
