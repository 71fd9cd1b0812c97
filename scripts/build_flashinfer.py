"""Compile the FlashInfer kernels that our cases call, without a GPU, as a wheel that FlashInfer finds.

    python scripts/build_flashinfer.py FOLDER [--arch 9.0a]

FlashInfer compiles each variant at its first use, for a minute and more, on every machine anew. Its own
`flashinfer-jit-cache` spares that with gigabytes of variants; this builds the few that
the kernels ask for, under the same name, in an hour and a half of one core. Needs nvcc, ninja,
the headers of cuBLAS and cuRAND, a libcuda to link with (CUDA's stub will do), and flashinfer-python of the
version that will load them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

import torch

from fastkernels.runner.sandbox.flashinfer_builds import NAME, PACKAGE

# (dtype, head dimension, sliding window) of the paged attention in registry/architectures.
ATTENTION = (
    (torch.bfloat16, 128, False),
    (torch.bfloat16, 128, True),
    (torch.bfloat16, 256, True),
    (torch.bfloat16, 64, False),
    (torch.float16, 64, False),
)
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def specs() -> list:
    """What to build: prefill by FA3, decode by FA2's prefill of one query, norms, rotations, activations."""
    from flashinfer.jit import activation, norm, rope  # pyright: ignore[reportMissingImports]
    from flashinfer.jit.attention import gen_batch_prefill_module  # pyright: ignore[reportMissingImports]

    attention = [
        gen_batch_prefill_module(
            backend, dtype, dtype, dtype, torch.int32, head_dim, head_dim, 0, window, False, False
        )
        for backend in ("fa3", "fa2")
        for dtype, head_dim, window in ATTENTION
    ]
    others = [activation.gen_act_and_mul_module(name) for name in ACTIVATIONS]
    return [norm.gen_norm_module(), rope.gen_rope_module(), *others, *attention]


def wheel(folder: Path, version: str, libraries: dict[str, Path]) -> Path:
    """A wheel that pip installs: the package, its metadata and one library a module."""
    name, info = NAME, f"{NAME}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/__init__.py", PACKAGE.format(version=version))
        for module, library in libraries.items():
            archive.write(library, f"{name}/jit_cache/{module}/{module}.so")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: build_flashinfer\nRoot-Is-Purelib: false\n"
            "Tag: py3-none-linux_x86_64\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the wheel")
    parser.add_argument("--arch", default="9.0a", help="CUDA architecture (default: %(default)s, Hopper)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="flashinfer-"))
    os.environ |= {"FLASHINFER_WORKSPACE_BASE": str(work), "FLASHINFER_CUDA_ARCH_LIST": arguments.arch}
    import flashinfer  # pyright: ignore[reportMissingImports]
    from flashinfer.jit.core import build_jit_specs  # pyright: ignore[reportMissingImports]

    wanted = specs()
    build_jit_specs(wanted, verbose=True, skip_prebuilt=False)
    libraries = {spec.name: spec.jit_library_path for spec in wanted}
    print(wheel(arguments.out, flashinfer.__version__, libraries))
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
