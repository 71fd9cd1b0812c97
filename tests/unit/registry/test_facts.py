"""The registry agrees with itself and with the task files."""

from __future__ import annotations

import importlib
import inspect
import math
import random
from collections import Counter

import numpy as np
import pytest

from fastkernels import kernels, registry
from fastkernels.loader.overlay import Overlay
from fastkernels.nn.config import text_config
from fastkernels.nn.latents import TOKEN_PIXELS
from fastkernels.records import REGISTRY, Case, Size, TensorSpec
from fastkernels.registry import source, uses
from fastkernels.registry.schema import Architecture, TaskEntry
from fastkernels.registry.workloads import Workload
from fastkernels.runner.models.draws import Requests
from fastkernels.score.distances import TABLE

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
    # Weights of L1/grouped_gemm:mxfp4 are expanded in its products: the task is for who does it before.
    alone = {"L1/low_bit_dequant", *(entry.id for entry in TASKS if is_collective(entry))}
    assert {entry.id for entry in TASKS} - used <= alone, "a task that no architecture uses"
    assert "L1/all_reduce" in uses.reached("L4/llama"), "layers that are split over ranks"
    assert "L4/llama" not in uses.reached("L4/mixtral")
    assert "L2/moe" not in uses.reached("L4/llama"), "a dense model does not depend on experts"


def test_suites_and_architectures_name_what_exists() -> None:
    for suite in registry.suites():
        assert registry.find_architectures(suite.architectures)
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


def asked_of(architecture: Architecture, size: Size) -> list[Workload]:
    names = {*architecture.workloads, *architecture.unscored}
    return [workload for workload in registry.workloads(size=size) if workload.name in names]


def test_workloads_ask_for_what_their_architecture_answers() -> None:
    for architecture in registry.architectures():
        for size in architecture.default_config:
            assert all(w.answer == architecture.correctness.kind for w in asked_of(architecture, size))


def test_what_architectures_declare_can_be_drawn_and_compared() -> None:
    """The smallest request of every workload, and of the samples."""
    for architecture in registry.architectures():
        facts = architecture.correctness
        for group in facts.noise:
            assert set(group) <= set(kernels.registered)
        declared = facts.inputs if facts.kind == "program" else facts.media
        for size, name in architecture.default_config.items():
            requests = Requests(declared, architecture.configs[name].config, random.Random(1))
            for asked in (*asked_of(architecture, size), facts.samples[size]):
                if facts.kind == "tokens" and not any(asked.shapes):
                    continue  # of text alone
                shape = min(asked.shapes, key=lambda shape: math.prod(map(np.max, shape.values())))
                (one,) = requests.of([shape], 1)
                assert one.keys() == declared.keys()
        if facts.kind == "program":
            for chosen in facts.outputs.values():
                assert {one.distance for one in chosen} <= TABLE.keys()


def test_images_are_whole_patches_cells_and_tokens() -> None:
    for name, multiple in {
        "siglip2": "patch_size",
        "dinov3": "patch_size",
        "yolov10": 32,
        "rtdetrv2": 32,
        "flux": TOKEN_PIXELS,
        "sdxl": 32,
    }.items():
        architecture = registry.architecture(name)
        for size, config in architecture.default_config.items():
            wanted = architecture.configs[config].config.get(multiple, multiple)
            asked = (*asked_of(architecture, size), architecture.correctness.samples[size])
            sides = [shape[side] for one in asked for shape in one.shapes for side in ("height", "width")]
            assert len(sides) > 2
            assert not any(side % wanted for side in sides)


def test_workloads_and_samples_fit_the_tiny_model() -> None:
    for architecture in registry.architectures():
        facts = architecture.correctness
        if facts.kind != "tokens":
            continue
        config = text_config(architecture.configs[architecture.default_config["tiny"]].config)
        limit = config[architecture.positions]
        assert facts.positions("tiny", registry.workloads(architecture.workloads, "tiny")) <= limit
        samples, prompt = facts.samples["tiny"], facts.prompt.get("tiny", ())
        assert samples.input_lens[0] <= samples.input_lens[1]
        assert facts.beside("tiny") + samples.input_lens[1] + samples.output_len <= limit
        assert prompt or samples.input_lens[0]
        assert all(i < config["vocab_size"] for i in prompt)


def test_clips_fit_the_model_of_each_size() -> None:
    architecture = registry.architecture("whisper")
    for size, name in architecture.default_config.items():
        longest_s = architecture.configs[name].config["max_source_positions"] / 50  # of 20 ms each
        for asked in (*asked_of(architecture, size), architecture.correctness.samples[size]):
            for shape in asked.shapes:
                assert 0 < np.min(shape["seconds"]) <= np.max(shape["seconds"]) <= longest_s


def all_cases() -> list[Case]:
    return [case for entry in TASKS for case in registry.cases(entry)]


def test_contexts_lie_within_the_models_positions() -> None:
    for case in all_cases():
        is_images = case.batch and (case.batch.grids or case.batch.images)
        if case.batch and not is_images and case.provenance.architecture != "registry":
            architecture = registry.architecture(case.provenance.architecture)
            if architecture.correctness.kind == "program":  # any number of positions, or none
                continue
            named = case.provenance.config
            (config,) = (c.config for name, c in architecture.configs.items() if named in (name, c.cut_name))
            is_clips = set(case.batch.seq_lens) == {config.get("max_source_positions")}
            assert is_clips or max(case.batch.seq_lens) <= text_config(config)[architecture.positions]


def test_calls_that_differ_in_their_sizes_alone_are_at_most_four_cases() -> None:
    count: Counter[tuple[str, bool, bool]] = Counter()
    for entry in TASKS:
        for case in registry.cases(entry):
            if (source := case.provenance).architecture == REGISTRY:
                continue
            shapes = [spec.shape for spec in case.inputs.values() if isinstance(spec, TensorSpec)]
            inputs = [(len(shape), shape[1:][-1:]) for shape in shapes]
            skew = case.routing.skew if case.routing else None
            what = (
                case.task,
                case.variant,
                source.architecture,
                source.config,
                case.dtype,
                case.init,
                inputs,
                skew,
            )
            count[repr(what), entry.thin, source.phase == "held-out"] += 1
    most = {(thin, held_out): 0 for thin in (False, True) for held_out in (False, True)}
    for (_, thin, held_out), number in count.items():
        most[thin, held_out] = max(most[thin, held_out], number)
    assert most == {(False, False): 4, (False, True): 1, (True, False): 1, (True, True): 1}


def test_a_language_model_is_timed_in_prompts_in_mixed_steps_and_in_decode_steps() -> None:
    attended = [c.batch for c in registry.cases("L1/decode_attention", "full") if c.timed and c.batch]
    assert {len(batch.seq_lens) for batch in attended} >= {32, 128}
    assert {max(batch.seq_lens) for batch in attended} >= {1024, 4096}
    norms = [c for c in registry.cases("L1/rms_norm", "full", "llama") if c.timed]
    tokens = {i.shape[0] for c in norms for i in c.inputs.values() if isinstance(i, TensorSpec)}
    assert tokens == {8192, 512, 32, 1}
    blocks = registry.cases("L3/decoder_layer", "full", "llama")
    assert {c.provenance.phase for c in blocks if c.timed} == {"prefill", "mixed", "decode"}
    held_out = [c.batch for c in blocks if not c.timed and c.batch]
    assert {len(set(batch.query_lens)) for batch in held_out} == {3}
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
    assert any(init["sliding_window"] == 8 for init in inits("L1/prefill_attention"))
    assert any(init["sliding_window"] == 8 for init in inits("L1/decode_attention"))
    assert any(init["sliding_window"] == 4096 for init in inits("L1/decode_attention"))
    assert {init["rope_parameters"]["rope_type"] for init in inits("L1/rope")} == {
        "default",
        "llama3",
        "yarn",
        "proportional",
    }
    assert any(init["config"]["tie_word_embeddings"] for init in inits("L4/llama"))
