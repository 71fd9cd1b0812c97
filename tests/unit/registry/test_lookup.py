"""Names, aliases, globs, variants; what matches nothing says what is near."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.errors import FileFormatError, NotFoundError, UsageError
from fastkernels.registry import lookup, models
from fastkernels.registry.workloads import TokenWorkload


@pytest.mark.parametrize(
    ("name", "id", "variants"),
    [
        ("L1/rms_norm", "L1/rms_norm", {"default", "gemma", "weightless"}),
        ("rms_norm", "L1/rms_norm", {"default", "gemma", "weightless"}),
        ("llama_mlp", "L2/gated_mlp", {"default"}),
        ("L1/glu", "L1/glu", {"default", "gelu", "relu2", "clamped"}),
        ("swigluoai_and_mul", "L1/glu", {"clamped"}),
        ("L1/glu:gelu", "L1/glu", {"gelu"}),
        ("gelu_and_mul", "L1/glu", {"gelu"}),
        ("silu_and_mul", "L1/glu", {"default"}),
        ("lm_head", "L2/parallel_embedding", {"lm_head"}),
    ],
)
def test_task_by_name(name: str, id: str, variants: set[str]) -> None:
    entry = registry.task(name)
    assert entry.id == id
    assert set(entry.variants) == variants


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["L1/rms_n*"], ["L1/rms_norm"]),
        (
            ["*_norm", "llama_mlp", "rms_norm"],
            [
                "L1/batch_norm",
                "L1/gated_rms_norm",
                "L1/global_response_norm",
                "L1/group_norm",
                "L1/l2_norm",
                "L1/layer_norm",
                "L1/rms_norm",
                "L2/adaptive_norm",
                "L2/all_reduce_norm",
                "L2/gated_mlp",
            ],
        ),
        (
            ["L1/de*attention", "L2/di*attention"],
            ["L1/decode_attention", "L1/dense_attention", "L2/diffusion_attention"],
        ),
        (
            ["L3/m*decoder_layer"],
            [
                "L3/mamba_decoder_layer",
                "L3/mixer_decoder_layer",
                "L3/moe_decoder_layer",
                "L3/moe_mamba_decoder_layer",
            ],
        ),
        (["*embedding:lm_*"], ["L2/parallel_embedding"]),
    ],
)
def test_patterns(patterns: list[str], expected: list[str]) -> None:
    assert [entry.id for entry in registry.find_tasks(patterns)] == expected


def test_patterns_of_one_task_join_their_variants() -> None:
    (entry,) = registry.find_tasks(["gelu_and_mul", "silu_and_mul"])
    assert set(entry.variants) == {"default", "gelu"}
    (entry,) = registry.find_tasks(["parallel_linear:row", "parallel_linear:qkv"])
    assert set(entry.variants) == {"row", "qkv"}


def test_level_and_architecture_filter_what_was_found() -> None:
    assert {entry.level for entry in registry.find_tasks(level=2)} == {2}
    assert registry.find_tasks(["L1/*"], level=2) == []
    used = {entry.id for entry in registry.find_tasks(architecture="llama")}
    assert {"L4/llama", "L3/decoder_layer", "L2/paged_attention", "L1/kv_cache", "L1/sampling"} <= used


@pytest.mark.parametrize(
    ("call", "suggestion"),
    [
        (lambda: registry.task("rmsnorm"), "L1/rms_norm"),
        (lambda: registry.find_tasks(["L1/rms_norm", "L2/gated_mpl"]), "L2/gated_mlp"),
        (lambda: registry.task("lama_mlp"), "llama_mlp"),
        (lambda: registry.task("L1/glu:gleu"), "L1/glu:gelu"),
        (lambda: registry.architecture("lama"), "llama"),
        (lambda: registry.workloads(["decode-hevy"]), "decode-heavy"),
        (lambda: registry.suite("smoek"), "smoke"),
        (lambda: registry.find_architectures(category="Dense & MoE LLM models"), "Dense & MoE LLMs"),
        (lambda: registry.architecture_for({"architectures": ["LlamaForCausal"]}), "LlamaForCausalLM"),
    ],
)
def test_near_names(call, suggestion: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        call()
    assert suggestion in caught.value.suggestions
    assert caught.value.exit_code == 2


def test_cases_filter() -> None:
    tiny = registry.cases("L1/rms_norm", size="tiny")
    assert tiny
    assert {case.size for case in tiny} == {"tiny"}
    (one,) = registry.cases("rms_norm", glob="llama-8b-T8192-D4096-residual-bf16")
    assert one.calls == 64
    assert registry.cases("rms_norm", glob="8b-T8192-D4096-residual") == [one]
    assert {case.variant for case in registry.cases("L1/glu:gelu")} == {"gelu"}
    assert {case.variant for case in registry.cases(registry.task("row_parallel_linear"))} == {"row"}
    assert {case.provenance.architecture for case in registry.cases("glu", architecture="llama")} == {"llama"}


def test_architecture_by_checkpoint_and_configuration() -> None:
    llama = registry.architecture("meta-llama/Llama-3.1-8B-Instruct")
    assert llama is registry.architecture("llama") is registry.architecture("Qwen/Qwen3-8B")
    assert registry.architecture_for({"architectures": ["Qwen3ForCausalLM"]}) is llama
    assert registry.architecture_for({"model_type": "mistral"}) is llama
    with pytest.raises(NotFoundError):  # the class decides, not the type that other models share
        registry.architecture_for(
            {"architectures": ["LlamaForSequenceClassification"], "model_type": "llama"}
        )
    with pytest.raises(UsageError, match="names neither architectures, model_type nor _class_name"):
        registry.architecture_for({"hidden_size": 64})


def test_workloads_of_the_scored_suite() -> None:
    full = {
        w.name: (w.kind, w.requests, w.input_len, w.output_len)
        for w in registry.workloads(size="full")
        if isinstance(w, TokenWorkload)
    }
    assert full["prefill-heavy"] == ("throughput", 1000, 1024, 512)
    assert full["balanced"] == ("throughput", 1000, 512, 512)
    assert full["decode-heavy"] == ("throughput", 1000, 512, 1024)
    assert full["single-request"] == ("latency", 1, 128, 128)
    assert full["fixed-batch-32"] == ("latency", 32, 128, 128)
    llama, detector = registry.architecture("llama"), registry.architecture("yolov10")
    scored, quick = registry.suite("default"), registry.suite("smoke")
    assert scored.names(llama, "full") == llama.workloads
    assert scored.names(detector, "full") == detector.workloads
    assert quick.names(llama, "full") == ("prefill-heavy-smoke", "decode-heavy-smoke", "single-request")


def test_steps_are_the_architecture_s_own_or_shared(copied: Path) -> None:
    for name, config, step in (("llama", "8b", "prefill-4x2048"), ("yolov10", "n", "detect-1x640x640")):
        architecture = registry.architecture(name)
        assert step in dict(registry.batches(architecture, architecture.configs[config]))
    lost = architecture.configs["n"].model_copy(update={"walk": ("pixels-huge",)})
    with pytest.raises(NotFoundError, match=r"pixels-huge.*Did you mean pixels-full.*registry/batches"):
        registry.batches(architecture, lost)
    shutil.copy(copied / "batches" / "decoder.yaml", copied / "batches" / "other.yaml")
    models._batches.cache_clear()
    with pytest.raises(FileFormatError, match="another file has a set of steps called decoder-full"):
        registry.batches(architecture, lost)


@pytest.mark.parametrize("whole", [False, True])
def test_nothing_that_is_not_admitted_is_timed(copied: Path, whole: bool) -> None:
    first, *others = [case.id for case in registry.cases("rms_norm") if case.timed]
    assert registry.task("rms_norm").refusals(first) == []
    with (copied / "tasks" / "L1" / "rms_norm.yaml").open("a") as file:
        file.write(f'not_admitted: {{cuda: {{"{"*" if whole else first}": a margin of 2.1}}}}\n')
    lookup._tasks.cache_clear()
    entry = registry.task("rms_norm")
    what = "L1/rms_norm" if whole else f"L1/rms_norm {first}"
    assert entry.refusals(first) == [
        f"{what} is checked and not timed: fk audit does not admit it on cuda (a margin of 2.1)"
    ]
    assert [case.id for case in registry.cases("rms_norm") if case.timed] == ([] if whole else others)
    assert any(case.timed for case in registry.cases("L1/glu"))


def test_a_word_that_is_like_no_name_has_no_suggestion() -> None:
    with pytest.raises(NotFoundError, match=r"No task 'nonsense'\. See: fk list tasks"):
        registry.task("nonsense")
