"""The engine on a GPU: graphs against eager steps and against the CPU, run-ahead, memory.

Float32 and tiny: the tokens of a greedy choice do not depend on the order of a reduction.
"""

from __future__ import annotations

import pytest
import torch

from fastkernels import LLM, SamplingParams
from fastkernels.errors import MachineError
from tests.row_cases import MAX_LEN, SIZES, check_decode_step

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

LENGTHS = (5, 17, 33, 2, 64, 1, 9, 40, 12, 3, 21)
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
CACHE_BLOCKS = 400  # enough for every row, so that the tests take little of the GPU


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 256, (n,), generator=generator).tolist() for n in LENGTHS]


def make(device: str = "cuda", config: str = "tiny", **kwargs) -> LLM:
    return LLM(
        "llama",
        **{
            "device": device,
            "config": config,
            "dtype": "float32",
            "num_kv_cache_blocks": CACHE_BLOCKS,
            "max_num_seqs": 16,
            **kwargs,
        },
    )


def texts(llm: LLM, params=GREEDY, **kwargs) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(prompts(), params, **kwargs)]


@pytest.mark.parametrize("config", ["tiny", "tiny-tied", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"])
def test_greedy_text_is_that_of_the_cpu(config):
    llm = make(config=config)
    assert texts(llm) == texts(make("cpu", config))
    stats = llm.stats()
    assert stats["graph_replays"] >= 60
    assert stats["piecewise_replays"] > 0
    assert stats["eager_steps"] == {}


@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_batched_tokens": 16},
        {"num_kv_cache_blocks": 60, "block_size": 4, "max_num_batched_tokens": 24},
        {"max_num_seqs": 3},
        {"enforce_eager": True},
    ],
    ids=["chunked", "preempted", "three-rows", "eager"],
)
@pytest.mark.usefixtures("nobody_grows")
def test_greedy_text_does_not_depend_on_the_schedule(engine):
    llm = make(**engine)
    assert texts(llm) == texts(make("cpu"))
    stats = llm.stats()
    assert (stats["preemptions"] > 0) == ("num_kv_cache_blocks" in engine)
    assert (stats["graph_replays"] > 0) != ("enforce_eager" in engine)
    assert stats["free_cache_blocks"] == [stats["cache_blocks"][0] - 1]


def test_graphs_are_captured_once_and_serve_later_calls():
    llm = make()
    first = texts(llm)
    captured = llm.stats()["graphs"]
    assert texts(llm) == first
    assert llm.stats()["graphs"] == captured
    with llm.eager():
        before = llm.stats()["graph_replays"]
        assert texts(llm) == first
        assert llm.stats()["graph_replays"] == before


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.8},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
        {"temperature": 0.8, "min_p": 0.05, "presence_penalty": 0.5, "repetition_penalty": 1.2},
    ],
    ids=["plain", "filtered", "shaped"],
)
def test_seeded_sampling_is_the_same_in_graphs_and_in_eager_steps(params):
    sampling = [SamplingParams(**params, max_tokens=32, seed=i, ignore_eos=True) for i in range(len(LENGTHS))]
    assert texts(make(), sampling) == texts(make(enforce_eager=True), sampling)


def test_forced_decoding_goes_through_graphs_and_agrees_with_itself():
    llm = make()
    free = texts(llm)
    replays = llm.stats()["graph_replays"]
    outputs = llm.generate(prompts(), SamplingParams(temperature=0.0, logprobs=5), forced=free)
    assert [out.outputs[0].token_ids for out in outputs] == free
    assert llm.stats()["graph_replays"] > replays
    for out in outputs:
        for token, best in zip(out.outputs[0].token_ids, out.outputs[0].logprobs, strict=True):
            assert next(iter(best)) == token
            assert sum(2.718281828459045**one.logprob for one in best.values()) <= 1 + 1e-4


def test_ended_requests_do_not_disturb_the_others():
    """Rows end at different steps, blocks and rows are handed on while the next step is already planned."""
    llm = make(max_num_seqs=4, num_kv_cache_blocks=40, block_size=4)
    full = texts(make("cpu"))
    params = [
        SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, stop_token_ids=[ids[7 + 3 * i]])
        for i, ids in enumerate(full)
    ]
    expected = [ids[: ids.index(ids[7 + 3 * i]) + 1] for i, ids in enumerate(full)]
    assert texts(llm, params) == expected


def test_cache_is_sized_from_the_free_memory():
    llm = make(num_kv_cache_blocks=None, max_num_batched_tokens=512)
    assert llm.stats()["cache_blocks"] == [16 * 256 // 16 + 1]  # all that 16 rows can use
    with pytest.raises(MachineError, match=r"gpu_memory_utilization=1e-06 allows 0\.0"):
        make(num_kv_cache_blocks=None, gpu_memory_utilization=1e-6)


SHAPES = (
    {"repetition_penalty": 1.4},
    {},
    {"presence_penalty": 1.5, "frequency_penalty": 0.25},
    {"min_tokens": 40, "stop_token_ids": list(range(3, 60))},
)


@pytest.mark.parametrize(
    "engine", [{}, {"num_kv_cache_blocks": 60, "block_size": 4}], ids=["roomy", "preempted"]
)
@pytest.mark.usefixtures("nobody_grows")
def test_penalties_in_graphs_give_the_text_of_the_cpu(engine):
    params = [
        SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True, **SHAPES[i % 4])
        for i in range(len(LENGTHS))
    ]
    llm = make(**engine)
    assert texts(llm, params) == texts(make("cpu"), params)
    stats = llm.stats()
    assert stats["graph_replays"] > 20, "shaped steps have graphs too"
    assert stats["eager_steps"] == {}


@pytest.mark.parametrize("config", ["tiny", "tiny-mistral"])
def test_prefix_caching_changes_no_text(config):
    plain, cached = make(config=config), make(config=config, enable_prefix_caching=True, block_size=4)
    first = texts(plain)
    assert texts(cached) == first
    assert texts(cached) == first
    assert cached.stats()["prefix_tokens_found"] > 100
    assert cached.stats()["free_cache_blocks"] == [cached.stats()["cache_blocks"][0] - 1]


def test_aborts_between_steps_in_flight_leave_the_others_alone():
    """Rows and blocks of an aborted request go to the next one while a step with the old one is in flight."""
    llm = make(max_num_seqs=3, num_kv_cache_blocks=60, block_size=4)
    full = texts(make("cpu"))
    found = {}
    for i, prompt in enumerate(prompts()):
        llm.add_request(prompt, GREEDY, request_id=str(i))
    aborted = [str(i) for i in range(0, len(LENGTHS), 3)]
    steps = 0
    while llm.has_unfinished_requests():
        found |= {output.request_id: output.outputs[0].token_ids for output in llm.step()}
        steps += 1
        if steps % 7 == 0 and aborted:
            llm.abort(aborted.pop(0))
    assert len(found) >= len(LENGTHS) - 4
    assert all(ids == full[int(name)] for name, ids in found.items())
    assert llm.stats()["free_cache_blocks"] == [59]


@pytest.mark.parametrize("engine", [{}, {"max_num_batched_tokens": 16}, {"max_num_seqs": 3}], ids=str)
@pytest.mark.parametrize("model", ["gla", "jamba", "mamba", "mamba2", "retnet"])
def test_states_advance_in_graphs_as_on_the_cpu(model, engine):
    """Padding of a graph writes to the null row; a row's next owner finds zeros."""
    options = {"config": "tiny", "dtype": "float32", "max_num_seqs": 16}
    llm = LLM(model, device="cuda", **{**options, **engine})
    expected = texts(LLM(model, device="cpu", **options))
    assert texts(llm) == expected
    assert texts(llm) == expected, "rows were taken before"
    assert llm.stats()["graph_replays"] > 0
    assert llm.stats()["piecewise_replays"] > 0
    assert llm.stats()["eager_steps"] == {}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("count", "padded", "bound"), [(1, 1, 2048), (5, 8, MAX_LEN), (500, 512, MAX_LEN)], ids=str
)
def test_the_ends_of_a_decode_step_are_kernels_that_do_what_index_operations_do(sizes, count, padded, bound):
    for seed in range(4):
        check_decode_step("cuda", sizes, count, padded, bound, seed)
