"""CUDA C++ of the Hopper kernels for a set of constants: these, then the files of this folder."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def source(name: str, constants: dict[str, int]) -> str:
    """One translation unit: the kernel `name` with its constants."""
    head = "".join(f"#define {key} {value}\n" for key, value in constants.items())
    parts = [head, (_FOLDER / "common.cu").read_text()]
    if name == "prefill":
        half = "bf16" if constants["BF16"] else "f16"
        parts += [_tensor_cores(constants["TILE"], constants["DIMS"], half)]
    return "\n".join([*parts, (_FOLDER / f"{name}.cu").read_text()])


def _tensor_cores(tile: int, dims: int, half: str) -> str:
    """wgmma of 64 rows: scores from queries and keys in shared memory, values by weights in registers.

    The instruction names every register, so that its text depends on the shape.
    """
    scores = [_product("wgmma_scores", keys, half, registers=False) for keys in (tile, tile // 2)]
    return "\n".join([_FENCES, *scores, _product("wgmma_values", dims, half, registers=True)])


_FENCES = """
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N groups are on their way; the registers are read after it.
template <int N, int R> DEVICE void wgmma_wait(float (&r)[R]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#pragma unroll
    for (int i = 0; i < R; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
// What is made of registers so far is made before the next wait, and no earlier than the last one.
template <int R> DEVICE void held(u32 (&r)[R]) {
#pragma unroll
    for (int i = 0; i < R; ++i) asm volatile("" : "+r"(r[i])::"memory");
}
template <int R> DEVICE void held(float (&r)[R]) {
#pragma unroll
    for (int i = 0; i < R; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
"""


def _product(name: str, columns: int, half: str, *, registers: bool) -> str:
    count = columns // 2
    a = 4 if registers else 1
    accumulators = ", ".join(f"%{i}" for i in range(count))
    left = f"{{{', '.join(f'%{count + i}' for i in range(4))}}}" if registers else f"%{count}"
    kind, signs = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{half}.{half}", "1, 1"
    order = "1" if registers else "0, 0"
    outputs = ", ".join(f'"+f"(r[{i}])' for i in range(count))
    inputs = ", ".join(f'"r"(a{i})' for i in range(4)) if registers else '"l"(a)'
    taken = ", ".join(f"u32 a{i}" for i in range(4)) if registers else "u64 a"
    return f"""
DEVICE void {name}(float (&r)[{count}], {taken}, u64 b, int adds) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + a + 1}, 0;\\n"
                 "{kind} {{{accumulators}}}, {left}, %{count + a}, p, {signs}, {order};\\n}}"
                 : {outputs}
                 : {inputs}, "l"(b), "r"(adds));
}}
"""
