"""Our Llama against transformers, float32 on the CPU, tiny models with randomised weights.

transformers' default initialisation (std 0.02) gives logits of std 0.16, which hide mistakes: weights are
drawn so that logits have a std of about 1. References are built in code; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pytest
import torch
from fastkernels.baseline.L4.llama import LlamaForCausalLM
from torch import Tensor, nn
from transformers import LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaForCausalLM as HfLlama
from transformers.models.mistral.modeling_mistral import MistralForCausalLM as HfMistral
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM as HfQwen2
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM as HfQwen3

from fastkernels import kernels
from fastkernels.loader.class_defaults import completed
from fastkernels.nn.cache import allocate, allocate_states, cache_groups
from fastkernels.nn.context import use_step
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import export_weights, load_weights
from tests.helpers import make_positions, make_step, make_tables

TOLERANCE = 5e-5  # max abs error in float32, from the architecture's fact sheet
PROMPT = 64
BLOCK_SIZE, NUM_BLOCKS = 4, 80
TINY = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
# An original length of 40 makes all three branches (kept, interpolated, divided) occur at head size 16.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
PLAIN = {"rope_type": "default", "rope_theta": 1e6}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
MODELS = {
    "llama": (HfLlama, lambda: LlamaConfig(**TINY, rms_norm_eps=1e-5)),
    "llama3": (HfLlama, lambda: LlamaConfig(**TINY, rms_norm_eps=1e-5, rope_parameters=dict(LLAMA3))),
    "tied": (
        HfLlama,
        lambda: LlamaConfig(**TINY | {"tie_word_embeddings": True}, rope_parameters=dict(LLAMA3)),
    ),
    "attention-bias": (HfLlama, lambda: LlamaConfig(**TINY, attention_bias=True)),
    "mlp-bias": (HfLlama, lambda: LlamaConfig(**TINY, mlp_bias=True)),
    "yarn": (HfLlama, lambda: LlamaConfig(**TINY, rope_parameters=dict(YARN))),
    "gelu": (HfLlama, lambda: LlamaConfig(**TINY, hidden_act="gelu_pytorch_tanh")),
    "qwen2": (
        HfQwen2,
        lambda: Qwen2Config(**TINY | {"tie_word_embeddings": True}, rope_parameters=dict(PLAIN)),
    ),
    "qwen2-window": (HfQwen2, lambda: Qwen2Config(**TINY, rope_parameters=dict(PLAIN), **QWEN_WINDOW)),
    "qwen2-some-windows": (
        HfQwen2,
        lambda: Qwen2Config(**TINY, rope_parameters=dict(PLAIN), **QWEN_WINDOW | {"max_window_layers": 1}),
    ),
    "qwen3-layer-types": (
        HfQwen3,
        lambda: Qwen3Config(
            **TINY,
            head_dim=32,
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "qwen3": (HfQwen3, lambda: Qwen3Config(**TINY, head_dim=32, rope_parameters=dict(PLAIN))),
    "mistral": (HfMistral, lambda: MistralConfig(**TINY, head_dim=32, sliding_window=8)),
    "mistral-full": (HfMistral, lambda: MistralConfig(**TINY, sliding_window=None)),
}
Schedule = Sequence[dict[int, int]]  # for each step: row -> its number of new tokens


@lru_cache
def reference(name: str) -> PreTrainedModel:
    build, config = MODELS[name]
    model = build._from_config(config(), attn_implementation="eager", dtype=torch.float32).eval()
    random_weights(model, seed=0)
    return model


@lru_cache
def ours(name: str) -> LlamaForCausalLM:
    model = LlamaForCausalLM(reference(name).config.to_dict())
    load_weights(model, reference(name).state_dict().items())
    return model


def prompt(length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, TINY["vocab_size"], (length,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def run(
    model: nn.Module,
    prompts: list[Tensor],
    schedule: Schedule,
    seed: int | None = 0,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Hidden states of each prompt after all steps; tokens of a step's rows are packed, decode rows first.

    Block tables are shuffled with `seed`; None leaves them in order. Pools start as NaN, so that reading
    what was not stored shows; so do states of nobody, those of the prompts lie in the order of `places_of`.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    pools = allocate(model, NUM_BLOCKS, BLOCK_SIZE, dtype, "cpu")
    for pool in pools.values():
        pool.fill_(torch.nan)
    places = places_of(prompts)
    for state in allocate_states(model, len(prompts) + 3, dtype, "cpu"):
        state[:, [row for row in range(state.shape[1]) if row not in places]] = torch.nan
    lengths = [len(ids) for ids in prompts]
    tables_BN = make_tables(lengths, BLOCK_SIZE, NUM_BLOCKS, generator)[0]
    if seed is None:
        tables_BN = torch.arange(1, tables_BN.numel() + 1, dtype=torch.int32).view_as(tables_BN)
    done, hidden = [0] * len(prompts), [[] for _ in prompts]
    for counts in schedule:
        rows = sorted(counts, key=lambda row: not (counts[row] == 1 and done[row] > 0))
        query_lens = [counts[row] for row in rows]
        seq_lens = [done[row] + counts[row] for row in rows]
        ids_T = torch.cat([prompts[row][done[row] : done[row] + counts[row]] for row in rows])
        own = [places[row] for row in rows]
        tables = [tables_BN[rows]] * max(1, len(cache_groups(model)))  # each group has pools of its own
        made = make_step(query_lens, seq_lens, BLOCK_SIZE, tables=tables, rows=own)
        with use_step(made):
            out_TD = model(ids_T, make_positions(query_lens, seq_lens))
        for row, part_TD in zip(rows, out_TD.split(query_lens), strict=True):
            hidden[row].append(part_TD)
            done[row] += counts[row]
    assert done == lengths, "the schedule must cover every prompt"
    return [torch.cat(parts) for parts in hidden]


def places_of(prompts: Sequence[Tensor]) -> list[int]:
    """The row of each prompt's states."""
    shuffled = torch.randperm(len(prompts) + 2, generator=torch.Generator().manual_seed(5)) + 1
    return shuffled[: len(prompts)].tolist()


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_hidden_states_and_logits(name: str):
    ids_T = prompt(PROMPT)
    expected_TD = reference(name).model(ids_T[None]).last_hidden_state[0]
    logits_TV = reference(name)(ids_T[None]).logits[0]
    assert logits_TV.std() > 0.5, "weights too small for a strong test"
    (hidden_TD,) = run(ours(name), [ids_T], [{0: PROMPT}])
    close(hidden_TD, expected_TD)
    actual_TV = ours(name).compute_logits(hidden_TD)
    assert actual_TV.dtype == torch.float32
    close(actual_TV, logits_TV)
    assert torch.equal(actual_TV.argmax(-1), logits_TV.argmax(-1))


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3", "mistral"])
@torch.inference_mode()
def test_every_cpu_implementation(name: str, implementation: str):
    ids_T = prompt(PROMPT)
    expected_TD = reference(name).model(ids_T[None]).last_hidden_state[0]
    with kernels.use(implementation):
        for schedule in ([{0: PROMPT}], [{0: 41}, {0: 20}, {0: 1}, {0: 1}, {0: 1}]):
            (hidden_TD,) = run(ours(name), [ids_T], schedule)
            close(hidden_TD, expected_TD)


@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_decode_equal_one_forward(name: str):
    ids_T = prompt(PROMPT)
    (full_TD,) = run(ours(name), [ids_T], [{0: PROMPT}])
    (decoded_TD,) = run(ours(name), [ids_T], [{0: PROMPT - 4}, {0: 1}, {0: 1}, {0: 1}, {0: 1}])
    close(decoded_TD, full_TD)


@pytest.mark.parametrize("chunks", [(17, 30, 17), (4, 4, 56), (63, 1), (1, 2, 61)])
@pytest.mark.parametrize("name", ["llama3", "qwen3", "mistral"])
def test_chunked_prefill_equals_unchunked(name: str, chunks: tuple[int, ...]):
    ids_T = prompt(PROMPT)
    (full_TD,) = run(ours(name), [ids_T], [{0: PROMPT}])
    (chunked_TD,) = run(ours(name), [ids_T], [{0: count} for count in chunks])
    close(chunked_TD, full_TD)


@pytest.mark.parametrize("name", ["llama3", "mistral"])
def test_block_tables_do_not_matter(name: str):
    ids_T, schedule = prompt(PROMPT), [{0: 40}, {0: 20}, *[{0: 1}] * 4]
    (ordered_TD,) = run(ours(name), [ids_T], schedule, seed=None)
    for seed in (1, 2):
        (shuffled_TD,) = run(ours(name), [ids_T], schedule, seed=seed)
        assert torch.equal(shuffled_TD, ordered_TD)


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3", "mistral"])
def test_a_batch_of_mixed_lengths_equals_single_runs(name: str):
    prompts = [prompt(length, seed=length) for length in (64, 1, 17, 33, 9)]
    schedule = [
        {0: 30, 1: 1, 2: 16},  # prefill of unequal lengths, one of them a single token
        {0: 33, 2: 1, 3: 20},  # decode beside a chunk and a new row
        {0: 1, 3: 1, 4: 9},
        {3: 12},
    ]
    together = run(ours(name), prompts, schedule)
    for ids_T, batched_TD in zip(prompts, together, strict=True):
        (alone_TD,) = run(ours(name), [ids_T], [{0: len(ids_T)}])
        close(batched_TD, alone_TD)


@pytest.mark.parametrize("name", MODELS)
def test_packed_weights_round_trip(name: str):
    original = reference(name).state_dict()
    exported = dict(export_weights(ours(name)))
    tied = {"lm_head.weight"} if reference(name).config.tie_word_embeddings else set()
    assert exported.keys() == original.keys() - tied
    assert all(torch.equal(exported[key], original[key]) for key in exported)
    again = LlamaForCausalLM(reference(name).config.to_dict())
    load_weights(again, exported.items())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours(name).parameters(), strict=True))


def test_a_wrong_model_would_be_noticed():
    """The tolerance is tight enough to see a window off by one and a table without llama3 scaling."""
    ids_T = prompt(PROMPT)
    for name, key, value in (
        ("mistral", "sliding_window", 9),
        ("llama3", "rope_parameters", PLAIN | {"rope_theta": 5e5}),
    ):
        other = LlamaForCausalLM(reference(name).config.to_dict() | {key: value})
        load_weights(other, reference(name).state_dict().items())
        (right_TD,), (wrong_TD,) = (run(model, [ids_T], [{0: PROMPT}]) for model in (ours(name), other))
        assert (right_TD - wrong_TD).abs().max() > 100 * TOLERANCE


def parameters_of(config: dict[str, object]) -> int:
    with torch.device("meta"):
        model: nn.Module = LlamaForCausalLM(completed(config))
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameter_counts_of_real_configurations():
    llama_8b = {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 8192},
    }
    llama_70b = llama_8b | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    }
    assert parameters_of(llama_8b) == 8_030_261_248
    assert parameters_of(llama_70b) == 70_553_706_496
    tiny = TINY | {"model_type": "llama", "head_dim": 16, "rope_parameters": LLAMA3}
    assert parameters_of(tiny) == 162_240
