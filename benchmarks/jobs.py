"""What `run_all.py` makes: jobs, the parts that a long one is cut into, and their seconds on an H200."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FK = ("-m", "fastkernels")
HERE = Path(__file__).parent
EXAMPLE = str(HERE.parent / "examples" / "cuda" / "triton")
VLLM = ("--vllm-path", "~/site-vllm")  # where vLLM's packages are looked for first
SEEING = ("qwen2_5_omni", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe")  # vLLM is their reference


@dataclass(frozen=True)
class Part:
    """`command` of python, which writes its report where the last flag says. `seconds`: on one H200, or a
    guess where it never ran; its limit is twice that. `gpus`: that it needs."""

    name: str
    seconds: int
    command: tuple[str, ...]
    gpus: int = 1


@dataclass(frozen=True)
class Job:
    """Parts, and the command of python that joins their reports; None where there is one part, the job's."""

    parts: tuple[Part, ...]
    join: tuple[str, ...] | None = None
    out: str = "--json"


def _kernels(mode: str, name: str, seconds: int, *filters: str, gpus: int = 1) -> Part:
    return Part(name, seconds, (*FK, "kernels", f"--{mode}", *filters, "--json"), gpus)


def _l1(*tasks: str) -> tuple[str, ...]:
    return ("--architecture", "llama", *(word for task in tasks for word in ("--target", f"L1/{task}")))


def _eager(name: str, seconds: int, *tasks: str) -> Part:
    filters = ("--contract", "eager", *_l1(*tasks))
    return _kernels("self-test", f"self_test_eager_{name}", seconds, *filters)


def _level(architecture: str, level: int, seconds: int) -> Part:
    filters = ("--architecture", architecture, "--level", str(level))
    return _kernels("self-test", f"self_test_{architecture}_level_{level}", seconds, *filters)


def _eval(name: str, seconds: int, *workloads: str, model: str = "llama") -> Part:
    chosen = (word for workload in workloads for word in ("--workload", workload))
    flags = ("--model", model, "--size", "full", "--self-test")
    return Part(name, seconds, (*FK, "eval", *flags, *chosen, "--json"))


def _audit(level: int, seconds: int) -> Part:
    flags = ("--device", "cuda", "--level", str(level), "--processes", str(BESIDE))
    return Part(f"audit_level_{level}", seconds, (*FK, "audit", *flags, "--json"))


def _program(name: str, seconds: int, *flags: str, program: str = "", gpus: int = 1) -> Job:
    return Job((Part(name, seconds, (str(HERE / f"{program or name}.py"), *flags, "--out"), gpus),))


def _tests(name: str, seconds: int, processes: int, gpus: int = 1) -> Job:
    file = HERE.parent / "tests" / "gpu" / f"test_{name}.py"
    flags = ("-n", str(processes)) if processes > 1 else ()
    return _program(f"gpu_tests_{name}", seconds, str(file), *flags, program="gpu_tests", gpus=gpus)


POINTWISE = ("rms_norm", "glu", "rope", "embedding", "kv_cache")
ATTENTION = ("prefill_attention", "decode_attention")
# As seen on four H200s on 2026-11-22, FlashInfer's kernels built before (scripts/build_flashinfer.py),
# in seconds; of the evaluations as seen on two, later.
LLAMA_L1 = (
    _kernels("self-test", "self_test_llama_linear", 92, *_l1("linear")),
    _kernels("self-test", "self_test_llama_pointwise", 167, *_l1(*POINTWISE)),
    _kernels("self-test", "self_test_llama_attention", 277, *_l1(*ATTENTION, "softmax", "sampling")),
)
LLAMA = {level: _level("llama", level, seconds) for level, seconds in ((2, 262), (3, 138), (4, 94))}
# What these take as jobs is guessed: none has run.
NEWER = (
    "bge_m3",
    "bitnet",
    "colbertv2",
    "convnextv2",
    "dinov3",
    "dlrmv2",
    "efficientnetv2",
    "gemma4",
    "gpt_oss",
    "kimi_linear",
    "lightgcn",
    "llada",
    "mamba",
    "mamba2",
    "mobilenetv4",
    "qwen2_5_omni",
    "qwen2_vl",
    "qwen3_next",
    "qwen3_vl",
    "qwen3_vl_moe",
    "retnet",
    "rwkv7",
    "swinv2",
    "vjepa2",
)
# Flux, yolov10, and the first of gla and siglip2 as seen on two H200s on 2026-11-25; the others are guesses.
OTHERS = {
    "flux": (465, 260),
    "gla": (237, 140),
    "jamba": (350, 170),
    "mixtral": (220, 100),
    "siglip2": (180, 110),
    "whisper": (280, 180),
    "yolov10": (284, 417),
    **dict.fromkeys(NEWER, (200, 200)),
}
COLLECTIVES = (
    *(f"L1/{name}" for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")),
    *(
        f"L2/{name}"
        for name in ("all_reduce_norm", "gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")
    ),
    "L2/expert_parallel_moe",
)
# Of two ranks; 40 s of them as seen with L1/all_reduce alone.
RANKS = _kernels(
    "self-test",
    "self_test_ranks",
    400,
    *(word for task in COLLECTIVES for word in ("--target", task)),
    gpus=2,
)
# Timed cases of no model's batch: a re-ranker's, and what gpt_oss reads a checkpoint with.
MAXSIM = ("--target", "L2/late_interaction", "--case", "maxsim*")
LOW_BIT = ("--target", "L1/low_bit_dequant")
VS_REFERENCE = {
    "gla": 262,
    "siglip2": 311,
    "yolov10": 184,
    "whisper": 361,
    "mixtral": 364,
    "jamba": 450,
    "flux": 545,
    **dict.fromkeys(NEWER, 200),
}
EVAL_LLAMA = (
    _eval("eval_llama_prefill_heavy", 470, "prefill-heavy"),
    _eval("eval_llama_balanced", 335, "balanced"),
    _eval("eval_llama_decode_heavy", 610, "decode-heavy"),
    _eval("eval_llama_latency", 130, "single-request", "fixed-batch-32"),
)
# Workloads of 1,000 requests would take an hour where a turn loads 94 GB first. Seconds as seen.
QUICK = ("single-request", "prefill-heavy-smoke")
# Of the newer ones that are as large. A model runs on one device: the 159 GB of qwen3_next, as registered,
# are more than an H200 holds, and so are the 471 GB of qwen3_vl_moe.
FEWER = dict.fromkeys(("gemma4", "gpt_oss", "kimi_linear", "qwen3_next"), QUICK)


def _other(model: str, seconds: int, *workloads: str) -> Part:
    return _eval(f"eval_{model}_self_test", seconds, *workloads, model=model)


EVAL_OTHERS = (
    _other("flux", 685),
    _other("gla", 85, "fixed-batch-32", *QUICK),
    _other("jamba", 251, *QUICK),
    _other("mixtral", 234, *QUICK),
    _other("siglip2", 190),
    _other("whisper", 324),
    _other("yolov10", 375),
    *(_other(name, 150, *FEWER.get(name, ())) for name in NEWER),
)
# Tested in files of several: classifier, mamba, delta_rule, images_in_prompts.
SHARED = ("efficientnetv2", "kimi_linear", "mamba2", "mobilenetv4", "qwen3_next", *SEEING)
# Of tests/gpu: seconds, processes beside each other, and GPUs where more than one. Engine, split_kernels,
# listener and sample as seen; of the others guesses.
GPU_TESTS = {
    "engine": (150, 1),
    "runner": (200, 1),
    "hold": (30, 1),
    "walk": (30, 1),
    "mapped": (60, 1),
    "sole": (60, 1),
    "eval": (120, 1),
    "split_kernels": (30, 1),
    "judge": (30, 1),
    "sample": (30, 1),
    "encoder": (200, 1),
    "listener": (60, 1),
    "detector": (40, 1),
    "image_pipeline": (60, 1),
    "cross_attention": (150, 1),
    "moe_kernels": (120, 4),
    "moe_hopper": (90, 1),
    "mamba_kernels": (60, 4),
    "gla_kernels": (150, 4),
    "capture": (60, 1),
    "attribution": (60, 1),
    "gate": (120, 1),
    "redteam": (300, 1),
    "ranks": (120, 1, 2),
    "collectives": (120, 1, 2),
    "attention_kernels": (500, 8),
    "attention_hopper": (90, 1),
    "pointwise_kernels": (500, 8),
    "retrieval_kernels": (60, 4),
    "classifier": (60, 1),
    "delta_rule": (120, 1),
    "images_in_prompts": (120, 1),
    "clips_in_prompts": (120, 1),
    "tensor_parallel": (200, 1, 2),
    **{name: (60, 1) for name in NEWER if name not in SHARED},
}
# Cases of an audit beside each other on a GPU; seconds of each level, of one case for each variant: guesses.
BESIDE = 20
AUDIT = {1: 240, 2: 210, 3: 60, 4: 60}
JOBS: dict[str, Job] = {
    "self_test_llama": Job((*LLAMA_L1, *LLAMA.values()), (*FK, "merge")),
    "kernels_llama": Job(
        (
            _kernels("providers", "kernels_llama_linear", 177, *_l1("linear")),
            _kernels("providers", "kernels_llama_pointwise", 475, *_l1(*POINTWISE)),
            _kernels("providers", "kernels_llama_prefill", 231, *_l1("prefill_attention")),
            _kernels("providers", "kernels_llama_decode", 300, *_l1("decode_attention")),
            _kernels("providers", "kernels_llama_softmax", 140, *_l1("softmax")),
            _kernels("providers", "kernels_llama_sampling", 382, *_l1("sampling")),
        ),
        (*FK, "merge"),
    ),
    # What a candidate's user waits for, and the share of it that is measuring.
    "kernels_llama_candidate": Job(
        (
            Part(
                "kernels_llama_candidate",
                93,
                (*FK, "kernels", "--architecture", "llama", "--candidates", EXAMPLE, "--json"),
            ),
        )
    ),
    "eval_llama_self_test": Job(EVAL_LLAMA, (*FK, "score")),
    # What `fk eval --suite default --self-test` says of these workloads, a model at a time.
    "eval_suite_default": Job((*EVAL_LLAMA, *EVAL_OTHERS), (*FK, "score")),
    **{part.name: Job((part,)) for part in EVAL_OTHERS},
    "self_test": Job(
        (
            *LLAMA_L1,
            LLAMA[2],
            RANKS,
            _kernels("self-test", "self_test_maxsim", 60, *MAXSIM),
            _kernels("self-test", "self_test_low_bit_dequant", 40, *LOW_BIT),
            *(_level(name, level, s) for name, both in OTHERS.items() for level, s in zip((1, 2), both)),
        ),
        (str(HERE / "self_test.py"),),
        "--out",
    ),
    # What single calls of identical code differ by: for records/base.py LEAST_NOISE. Seconds guessed.
    "self_test_eager": Job(
        (
            _eager("pointwise", 200, "linear", *POINTWISE),
            _eager("attention", 300, *ATTENTION, "softmax", "sampling"),
        ),
        (str(HERE / "self_test.py"),),
        "--out",
    ),
    "ncu_agreement": _program("ncu_agreement", 80),
    **{
        f"{name}_vs_reference": _program(
            f"{name}_vs_reference",
            seconds,
            name,
            *(VLLM if name in SEEING else ()),
            program="vs_reference",
        )
        for name, seconds in VS_REFERENCE.items()
    },
    "vs_vllm_llama": _program("vs_vllm_llama", 1000, *VLLM, program="vs_vllm"),
    "mixtral_vs_vllm": _program(
        "mixtral_vs_vllm", 400, "mixtral", "--reference", "vllm", *VLLM, program="vs_reference"
    ),
    "attention_vs_fa3": _program("attention_vs_fa3", 150, *VLLM, "--seconds", "120"),
    "experts_vs_vllm": _program("experts_vs_vllm", 200, *VLLM, "--seconds", "170"),
    "agreement_llama": _program("agreement_llama", 120, "llama", program="agreement"),
    **{
        f"collectives_x{n}": _program(
            f"collectives_x{n}", 400, "--ranks", str(n), program="collectives", gpus=n
        )
        for n in (2, 4)
    },
    "gate_trials": _program("gate_trials", 760, "--times", "20"),
    "redteam": _program("redteam", 335, "--alternates", str(HERE / "h200" / "kernels_llama.json.gz")),
    **{f"gpu_tests_{name}": _tests(name, *costs) for name, costs in GPU_TESTS.items()},
    "audit": Job(tuple(_audit(*each) for each in AUDIT.items()), (str(HERE / "admission.py"),), "--out"),
}
