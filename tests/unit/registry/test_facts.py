"""The registry agrees with itself and with the task files."""

from __future__ import annotations

import importlib
import inspect

import pytest

from fastkernels import kernels, registry
from fastkernels.engine.latents import TOKEN_PIXELS
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Case, TensorSpec
from fastkernels.registry import source, uses
from fastkernels.registry.schema import TaskEntry

TASKS = registry.tasks()
BASELINE = Overlay.over_baseline()


@pytest.mark.parametrize("entry", TASKS, ids=lambda entry: entry.id)
def test_task_file(entry: TaskEntry) -> None:
    module = BASELINE.load(entry.module)
    classes = [getattr(module, name) for name in entry.variants.values()]
    arguments = set().union(*(inspect.signature(cls.forward).parameters for cls in classes))
    assert set(entry.mutates) <= arguments
    assert set(entry.draws) <= arguments
    assert set(entry.selects.values()) <= arguments
    for variant, names in entry.decides.items():
        forward = getattr(module, entry.variants[variant]).forward
        assert set(names) <= set(inspect.signature(forward).parameters)
    assert set(entry.kernels) <= set(kernels.registered)
    assert source.contract(entry) == inspect.getdoc(module)
    # Every production module that the registry names is named in the contract.
    for name in entry.mirrors:
        assert name.rpartition(".")[2] in source.contract(entry)


def is_collective(entry) -> bool:
    """Whether groups of ranks call it: judged on CPUs alone, and no architecture here is split over ranks."""
    return all(case.ranks > 1 for case in registry.cases(entry))


def test_every_variant_has_cases_of_both_sizes_and_some_are_timed() -> None:
    for entry in TASKS:
        cases = registry.cases(entry)
        covered = {(case.variant, case.size) for case in cases}
        sizes = ("tiny",) if is_collective(entry) else ("tiny", "full")
        wanted = {(variant, size) for variant in entry.variants for size in sizes}
        assert wanted <= covered, entry.id
        for size in sizes:
            timed = any(case.timed for case in cases if case.size == size)
            whole = any("*" in refused for refused in entry.not_admitted.values())
            assert timed == (not whole), entry.id
            assert any(not case.timed for case in cases if case.size == size), entry.id


def test_cases_that_are_not_admitted_exist() -> None:
    for entry in TASKS:
        known = {"*", *(case.id for case in registry.cases(entry))}
        for refused in entry.not_admitted.values():
            assert refused.keys() <= known, entry.id


def test_kernels_of_a_task_are_those_that_its_file_calls() -> None:
    for entry in TASKS:
        text = source.task_file(entry).read_text()
        called = {name for name in kernels.registered if f"kernels.{name}(" in text}
        assert set(entry.kernels) == called, entry.id


def test_implementations_read_from_source_are_the_registered_ones() -> None:
    assert set(source.kernels()) == set(kernels.registered)
    for name, kernel in kernels.registered.items():
        declared = [(i.name, i.devices, i.requires, i.extra) for i in kernel.implementations]
        read = [(i.name, i.devices, i.requires, i.extra) for i in source.implementations(name)]
        assert read == [*declared, ("reference", ("cpu", "cuda"), (), None)]


def test_device_tables_name_kernels_and_implementations_that_exist() -> None:
    facts = registry.device("nvidia-h200")
    assert facts is not None
    for kernel, choices in facts.implementations.items():
        names = {choice if isinstance(choice, str) else choice.use for choice in choices}
        assert names <= set(kernels.registered[kernel].names)
    assert registry.device("no-such-device") is None


def test_import_graph() -> None:
    assert uses.direct("L2/gated_mlp") == ("L1/glu", "L2/parallel_linear")
    assert "L3/decoder_layer" in uses.users("L2/gated_mlp", [entry.id for entry in TASKS])
    assert "L1/linear" in uses.reached("L4/llama")
    used = set().union(*(uses.reached(architecture.task) for architecture in registry.architectures()))
    alone = {entry.id for entry in TASKS if is_collective(entry)}
    assert {entry.id for entry in TASKS} - alone == used, "a task that no architecture uses"
    assert "L4/llama" not in uses.reached("L4/mixtral")
    assert "L2/moe" not in uses.reached("L4/llama"), "a dense model does not depend on experts"


def test_suites_and_architectures_name_what_exists() -> None:
    for suite in registry.suites():
        registry.find_architectures(suite.architectures)
        for size, names in suite.workloads.items():
            assert [w.name for w in registry.workloads(names, size)] == list(names)
    for architecture in registry.architectures():
        assert importlib.util.find_spec("transformers")
        registry.task(architecture.task)
        for size, name in architecture.default_config.items():
            assert architecture.configs[name].size == size
            assert [w.name for w in registry.workloads(architecture.workloads, size)] == list(
                architecture.workloads
            )
        for config in architecture.configs.values():
            assert config.config["architectures"][0] in architecture.hf_architectures
            assert config.config["model_type"] in architecture.model_types


def test_workloads_ask_for_what_their_architecture_answers() -> None:
    for architecture in registry.architectures():
        for workload in registry.workloads(architecture.workloads):
            assert workload.answer == architecture.correctness.kind


def test_images_of_workloads_and_samples_are_whole_patches() -> None:
    for architecture in registry.architectures():
        if architecture.correctness.kind != "embedding":
            continue
        for size, name in architecture.default_config.items():
            patch = architecture.configs[name].config["patch_size"]
            asked = [
                *registry.workloads(architecture.workloads, size),
                architecture.correctness.samples[size],
            ]
            sizes = {side for one in asked for resolution in one.resolutions for side in resolution}
            assert sizes
            assert all(side % patch == 0 for side in sizes)


def test_generated_images_are_whole_tokens() -> None:
    for architecture in registry.architectures():
        if architecture.correctness.kind != "image":
            continue
        for size in architecture.default_config:
            asked = [workload.resolution for workload in registry.workloads(architecture.workloads, size)]
            asked += architecture.correctness.samples[size].resolutions
            assert len(asked) > 1
            assert all(side % TOKEN_PIXELS == 0 for resolution in asked for side in resolution)


def test_tiny_workloads_and_samples_fit_the_tiny_model() -> None:
    for architecture in registry.architectures():
        if architecture.correctness.kind != "tokens":
            continue
        limit = architecture.configs[architecture.default_config["tiny"]].config[architecture.positions]
        for workload in registry.workloads(architecture.workloads, "tiny"):
            assert workload.input_len + workload.output_len <= limit
        samples = architecture.correctness.samples["tiny"]
        assert samples.input_lens[0] <= samples.input_lens[1] <= limit - samples.output_len


def test_speech_fits_the_model_of_each_size() -> None:
    for architecture in registry.architectures():
        if architecture.correctness.kind != "speech":
            continue
        for size, name in architecture.default_config.items():
            config = architecture.configs[name].config
            samples, prompt = architecture.correctness.samples[size], architecture.correctness.prompt[size]
            assert max(prompt) < config["vocab_size"]
            longest_s = config["max_source_positions"] / 50  # of 20 ms each
            for asked in (*registry.workloads(architecture.workloads, size), samples):
                assert len(prompt) + asked.output_len <= config[architecture.positions]
            assert all(w.seconds <= longest_s for w in registry.workloads(architecture.workloads, size))
            assert 0 < samples.seconds[0] <= samples.seconds[1] <= longest_s


def all_cases() -> list[Case]:
    return [case for entry in TASKS for case in registry.cases(entry)]


def test_contexts_lie_within_the_models_positions() -> None:
    for case in all_cases():
        if case.batch and not case.batch.grids and case.provenance.architecture != "registry":
            architecture = registry.architecture(case.provenance.architecture)
            config = architecture.configs[case.provenance.config.removesuffix("-2layers")].config
            is_map = architecture.correctness.kind in ("detections", "image")  # any number of positions
            is_clips = set(case.batch.seq_lens) == {config.get("max_source_positions")}
            assert is_map or is_clips or max(case.batch.seq_lens) <= config[architecture.positions]


def test_what_the_issue_asks_for_is_there() -> None:
    batches = {
        case.batch.rows for case in registry.cases("L1/decode_attention", "full") if case.timed and case.batch
    }
    assert {sum(count for count, _, _ in rows) for rows in batches} >= {1, 8, 32, 128, 256, 512}
    assert {seq for rows in batches for _, _, seq in rows} >= {128, 1024, 8192}
    tokens = {
        spec.shape[0]
        for case in registry.cases("L1/rms_norm", "full")
        if case.timed
        for spec in case.inputs.values()
        if isinstance(spec, TensorSpec)
    }
    assert tokens >= {512, 2048, 8192, 1, 8, 32, 128, 256}
    ragged = [case for case in registry.cases("L1/prefill_attention", "full", glob="ragged") if case.batch]
    assert len(set(ragged[0].batch.query_lens)) > 3
    assert all(
        case.init["config"]["num_hidden_layers"] == 2 and "2layers" in case.id
        for case in registry.cases("L4/llama", "full")
    )
    assert {case.init["config"]["num_hidden_layers"] for case in registry.cases("L4/llama", "tiny")} == {3}


def test_siblings_are_covered() -> None:
    def inits(task: str) -> list[dict]:
        return [case.init for case in registry.cases(task)]

    assert any(init["qk_norm_eps"] for init in inits("L2/causal_attention"))
    assert any(init["qkv_bias"] for init in inits("L2/causal_attention"))
    assert any(init["window"] == 8 for init in inits("L1/prefill_attention"))
    assert any(init["window"] == 8 for init in inits("L1/decode_attention"))
    assert any(init["window"] == 4096 for init in inits("L1/decode_attention"))
    assert {init["rope_parameters"]["rope_type"] for init in inits("L1/rope")} == {
        "default",
        "llama3",
        "yarn",
    }
    assert any(init["config"]["tie_word_embeddings"] for init in inits("L4/llama"))
