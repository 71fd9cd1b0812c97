"""CUDA C++ of the Hopper kernels for a set of constants: these, then the files of this folder."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def source(name: str, constants: dict[str, int]) -> str:
    """One translation unit: the kernel `name` with its constants."""
    head = "".join(f"#define {key} {value}\n" for key, value in constants.items())
    files = ["machine.cu", f"{name}.cu"] if name == "grouped" else ["machine.cu", "common.cu", f"{name}.cu"]
    *before, last = ((_FOLDER / file).read_text() for file in files)
    return "\n".join([head, *before, *_tensor_cores(name, constants), last])


def _tensor_cores(name: str, constants: dict[str, int]) -> list[str]:
    """wgmma of 64 rows: of factors in shared memory (queries and keys, a weight and rows of x), or of weights
    in registers and values.

    The instruction names every register, so that its text depends on the shape.
    """
    half = "bf16" if constants["BF16"] else "f16"
    if name == "prefill":
        widths = [constants["TILE"], constants["TILE"] // 2]
        values = [_product("wgmma_values", constants["DIMS"], half, registers=True)]
    elif name == "grouped":
        wholes = _widths(constants["SLOTS"])
        widths, values = sorted({min(w, 256) for w in wholes} | {w - 256 for w in wholes if w > 256}), []
    else:
        return []
    return [_FENCES, *(_product("wgmma_scores", width, half, registers=False) for width in widths), *values]


def _widths(slots: int) -> list[int]:
    """Those of grouped.cu, where `narrower` chooses among them."""
    found = [slots]
    while (width := found[-1]) > 64:
        found.append(64 if width <= slots // 2 else width - 32)
    return found


_FENCES = """
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N groups are on their way; the registers are read after it.
template <int N> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
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
