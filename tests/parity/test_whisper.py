"""Our Whisper against transformers, float32 on the CPU, a tiny model with randomised weights; our front end
against its feature extractor. References are built in code; nothing is fetched.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from fastkernels.baseline.L1.log_mel import LogMel
from fastkernels.baseline.L4.whisper import WhisperForConditionalGeneration
from torch import Tensor
from transformers import WhisperConfig, WhisperFeatureExtractor
from transformers.models.whisper.modeling_whisper import WhisperForConditionalGeneration as HfWhisper

from fastkernels import kernels
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.cache import allocate, allocate_states
from fastkernels.nn.context import use_step
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weight_map import ZEROS
from fastkernels.nn.weights import export_weights, load_weights
from tests.helpers import make_positions, make_step, make_tables

TOLERANCE = 1e-5  # of the largest value, from the architecture's fact sheet
TINY = {
    "model_type": "whisper",
    "vocab_size": 1701,
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 50,
    "max_target_positions": 32,
    "activation_function": "gelu",
    "pad_token_id": 90,
    "bos_token_id": 90,
    "eos_token_id": 90,
    "decoder_start_token_id": 91,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
SAMPLES, STATES = 16_000, 50
BLOCK_SIZE, NUM_BLOCKS, POOL_ROWS = 4, 40, 7
LENGTHS = [7, 20, 1, 13]
ROWS = [5, 2, 6, 3]  # where the requests of LENGTHS keep their states


@lru_cache
def reference(is_tied: bool = True) -> HfWhisper:
    given = {k: v for k, v in TINY.items() if k != "model_type"}
    config = WhisperConfig(**given, tie_word_embeddings=is_tied)
    model = HfWhisper._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    random_weights(model, seed=0)
    return model


@lru_cache
def ours() -> WhisperForConditionalGeneration:
    model = WhisperForConditionalGeneration(TINY)
    random_weights(model, seed=3)  # rows that no checkpoint fills hold something before they are zeroed
    load_weights(model, reference().state_dict().items())
    return model


@lru_cache
def extractor(bands: int = 8, seconds: int = 1) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(feature_size=bands, chunk_length=seconds)


def noise(seed: int = 7, samples: int = SAMPLES) -> Tensor:
    """A clip of white noise, louder towards its end."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, generator=generator) * torch.linspace(0.01, 0.3, samples)


@lru_cache
def clips() -> Tensor:
    """[4, N]; the last is shorter than its window."""
    clips_BN = torch.stack([noise(seed) for seed in range(4)])
    clips_BN[3, 5000:] = 0
    return clips_BN


@lru_cache
def prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, TINY["vocab_size"], (length,), generator=generator) for length in LENGTHS]


@torch.inference_mode()
def expected_states(clips_BN: Tensor) -> Tensor:
    features = extractor()(list(clips_BN.numpy()), sampling_rate=16000, return_tensors="pt").input_features
    return reference().model.encoder(features).last_hidden_state


@torch.inference_mode()
def expected_logits(states_SD: Tensor, ids_T: Tensor) -> Tensor:
    outputs = reference()(encoder_outputs=(states_SD[None],), decoder_input_ids=ids_T[None])
    return outputs.logits[0]


@torch.inference_mode()
def run(
    model: WhisperForConditionalGeneration, states_BSD: Tensor, schedule: list[dict[int, int]]
) -> list[Tensor]:
    """Logits of each prompt after all steps, each step {prompt: new tokens}; decode rows first. Pools start
    as NaN, so that reading what was not stored shows."""
    pools = allocate(model, NUM_BLOCKS, BLOCK_SIZE, torch.float32, "cpu")
    states = allocate_states(model, POOL_ROWS, torch.float32, "cpu")
    for pool in [*pools.values(), *states]:
        pool.fill_(torch.nan)
    tables_BN = make_tables(LENGTHS, BLOCK_SIZE, NUM_BLOCKS, torch.Generator().manual_seed(0))[0]
    done, logits = [0] * len(LENGTHS), [[] for _ in LENGTHS]
    for counts in schedule:
        chosen = sorted(counts, key=lambda i: not (counts[i] == 1 and done[i] > 0))
        query_lens, seq_lens = [counts[i] for i in chosen], [done[i] + counts[i] for i in chosen]
        step = make_step(
            query_lens,
            seq_lens,
            BLOCK_SIZE,
            tables=[tables_BN[chosen]],
            rows=[ROWS[i] for i in chosen],
        )
        begun = [i for i in chosen if not done[i]]
        given = states_BSD[begun].flatten(0, 1) if begun else None
        ids_T = torch.cat([prompts()[i][done[i] : done[i] + counts[i]] for i in chosen])
        with use_step(step):
            hidden_TD = model(ids_T, make_positions(query_lens, seq_lens), given)
            logits_TV = model.compute_logits(hidden_TD)
        for i, part_TV in zip(chosen, logits_TV.split(query_lens), strict=True):
            logits[i].append(part_TV)
            done[i] += counts[i]
    assert done == LENGTHS, "the schedule must cover every prompt"
    return [torch.cat(parts) for parts in logits]


# One request begins while others decode, one ends early, one prompt comes in two chunks.
AGES = [{0: 4}, {0: 1, 1: 9}, {0: 1, 1: 1, 2: 1}, {0: 1, 1: 5, 3: 6}, *[{1: 1, 3: 1}] * 5, {3: 2}]


def close(actual: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(actual, wanted, rtol=0, atol=tolerance * max(1.0, wanted.abs().max().item()))


# ---- front end


def test_mel_filters_are_the_extractors():
    for bands in (8, 80, 128):
        filters_MK = kernels.mel_filters(bands, 400, 16000)
        close(filters_MK.float(), torch.from_numpy(extractor(bands).mel_filters.T).float(), 1e-7)


def _chirp(samples: int) -> Tensor:
    seconds = torch.arange(samples, dtype=torch.float64) / 16000
    return (0.4 * torch.sin(2 * torch.pi * (100 * seconds + 120 * seconds**2))).float()


def padded(audio_N: Tensor) -> Tensor:
    """[1, 480000]: 30 s, with zeros behind a shorter clip."""
    return torch.nn.functional.pad(audio_N[:480_000], (0, max(0, 480_000 - len(audio_N))))[None]


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@pytest.mark.parametrize("kind", ["noise", "chirp"])
@pytest.mark.parametrize("seconds", [1, 30, 40])
def test_log_mel_is_the_extractors(kind: str, seconds: int, implementation: str):
    """Its path in float64: between the harmonics of a chirp its float32 transform is off by 7e-5 itself."""
    audio_BN = padded((noise if kind == "noise" else _chirp)(samples=16000 * seconds))
    features_BMF = extractor(128, 30)._np_extract_fbank_features(audio_BN.double().numpy(), "cpu")
    with kernels.use(log_mel=implementation):
        found = LogMel(128).double()(audio_BN.double())
    assert found.shape == (1, 128, 3000)
    close(found.float(), torch.from_numpy(features_BMF).float())


@pytest.mark.parametrize("seconds", [1, 30, 40])
def test_log_mel_in_float32(seconds: int):
    """What is served; the extractor pads a clip to 30 s or cuts it there. Its own float32 features are up to
    1.4e-5 away from its float64 path (on an EPYC): ours are held to that path, and to twice its distance.
    """
    audio_N, front = noise(samples=16000 * seconds), extractor(128, 30)
    exact = torch.from_numpy(front._np_extract_fbank_features(padded(audio_N).double().numpy(), "cpu"))
    theirs = front(audio_N.numpy(), sampling_rate=16000, return_tensors="pt").input_features
    theirs_off, ours_off = ((found - exact).abs().max() for found in (theirs, LogMel(128)(padded(audio_N))))
    assert theirs_off < 2 * TOLERANCE
    assert ours_off <= max(TOLERANCE, 2 * theirs_off)


def test_log_mel_of_silence_and_of_clips_side_by_side():
    """The floor follows each clip's own maximum, not the batch's."""
    front = LogMel(128)
    assert torch.equal(front(torch.zeros(1, SAMPLES)), torch.full((1, 128, 100), -1.5))
    both = torch.stack([noise(1), noise(2) * 1e-4])
    close(front(both), torch.cat([front(both[:1]), front(both[1:])]), 1e-6)


# ---- model


def test_encoder_states():
    with torch.inference_mode():
        found = ours().encode(clips())
        alone = torch.cat([ours().encode(clip_N[None]) for clip_N in clips()])
    wanted = expected_states(clips())
    assert wanted.std() > 0.5, "weights too small for a strong test"
    close(found, wanted)
    close(found, alone)


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_logits_of_requests_of_different_ages(implementation: str):
    states_BSD = expected_states(clips())
    with kernels.use(implementation):
        found = run(ours(), states_BSD, AGES)
    for states_SD, ids_T, logits_TV in zip(states_BSD, prompts(), found, strict=True):
        wanted = expected_logits(states_SD, ids_T)
        assert wanted.std() > 0.5, "weights too small for a strong test"
        close(logits_TV, wanted)


def test_an_output_that_is_not_tied():
    theirs = reference(is_tied=False)
    model = WhisperForConditionalGeneration(theirs.config.to_dict())
    load_weights(model, theirs.state_dict().items())
    states_BSD = expected_states(clips())
    assert not torch.equal(theirs.proj_out.weight, theirs.model.decoder.embed_tokens.weight)
    found = run(model, states_BSD, [dict(enumerate(LENGTHS))])
    with torch.inference_mode():
        outputs = theirs(encoder_outputs=(states_BSD[:1],), decoder_input_ids=prompts()[0][None])
    close(found[0], outputs.logits[0])


def test_a_prompt_at_once_equals_token_by_token():
    states_BSD = expected_states(clips())
    together = run(ours(), states_BSD, [dict(enumerate(LENGTHS))])
    one_by_one = run(
        ours(), states_BSD, [{i: 1 for i, n in enumerate(LENGTHS) if at < n} for at in range(max(LENGTHS))]
    )
    for a, b in zip(together, one_by_one, strict=True):
        close(a, b)


def test_another_source_would_be_noticed():
    states_BSD = expected_states(clips())
    right, wrong = (
        run(ours(), states, [dict(enumerate(LENGTHS))]) for states in (states_BSD, states_BSD.flip(0))
    )
    assert all((a - b).abs().max() > 100 * TOLERANCE for a, b in zip(right, wrong))


def test_kept_states_are_the_references_keys_and_values():
    states_BSD = expected_states(clips())
    run(ours(), states_BSD, [dict(enumerate(LENGTHS))])
    for layer, theirs in zip(ours().layers, reference().model.decoder.layers, strict=True):
        with torch.inference_mode():
            key_BSD = theirs.encoder_attn.k_proj(states_BSD)
            value_BSD = theirs.encoder_attn.v_proj(states_BSD)
        close(layer.encoder_attn.k_state[ROWS].flatten(2), key_BSD)
        close(layer.encoder_attn.v_state[ROWS].flatten(2), value_BSD)
        assert layer.encoder_attn.k_state[1].isnan().all(), "a row of nobody was written"


@pytest.mark.parametrize(
    "wrong", [{"encoder_attention_heads": 2}, {"decoder_attention_heads": 2}], ids=["encoder", "decoder"]
)
def test_a_wrong_model_would_be_noticed(wrong: dict[str, int]):
    other = WhisperForConditionalGeneration(TINY | wrong)
    load_weights(other, reference().state_dict().items())
    with torch.inference_mode():
        states_BSD = other.encode(clips())
    found = run(other, states_BSD, [dict(enumerate(LENGTHS))])
    wanted = expected_logits(expected_states(clips()[:1])[0], prompts()[0])
    assert (found[0] - wanted).abs().max() > 100 * TOLERANCE


# ---- weights


def test_keys_have_no_bias_in_a_file():
    own = dict(reference().state_dict())
    model = ours()
    size = TINY["d_model"]
    for attention in (model.encoder.layers[0].self_attn.qkv_proj, model.layers[1].self_attn.qkv_proj):
        assert attention.linear.bias[:size].any()
        assert not attention.linear.bias[size : 2 * size].any()
        assert attention.linear.bias[2 * size :].any()
    exported = dict(export_weights(model))
    assert ZEROS not in exported
    assert exported.keys() == own.keys() - {"proj_out.weight"}
    assert all(torch.equal(exported[name], own[name]) for name in exported)
    with pytest.raises(WeightsError, match=r"encoder_attn\.v_proj\.bias"):
        load_weights(
            WhisperForConditionalGeneration(TINY),
            ((n, t) for n, t in own.items() if "encoder_attn.v_proj.bias" not in n),
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"encoder_attention_heads": 5}, "d_model: 32 is no multiple of encoder_attention_heads"),
        ({"activation_function": "relu"}, "activation_function: 'relu'"),
        ({"scale_embedding": True}, "scale_embedding: True"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, object], says: str):
    with pytest.raises(UsageError, match=says):
        WhisperForConditionalGeneration(TINY | change)


def test_parameter_counts():
    """Ours has three vectors of zeros in every pair of layers that the file has not: biases of keys."""
    real = {
        "vocab_size": 51866,
        "num_mel_bins": 128,
        "d_model": 1280,
        "encoder_layers": 32,
        "decoder_layers": 32,
        "encoder_attention_heads": 20,
        "decoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "decoder_ffn_dim": 5120,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "activation_function": "gelu",
    }
    for config, count in ((real, 1_543_490_560), (TINY, 103_648)):
        with torch.device("meta"):
            model = WhisperForConditionalGeneration(config)
        zeros = 3 * config["d_model"] * config["encoder_layers"]
        assert sum(parameter.numel() for parameter in model.parameters()) == count + zeros


def test_greedy_tokens_are_the_references():
    """transformers' own decoding, without its lists of suppressed tokens."""
    features = extractor()(list(clips().numpy()), sampling_rate=16000, return_tensors="pt").input_features
    wanted = np.array([[91, 5]] * 4)
    with torch.inference_mode():
        for _ in range(6):
            logits = reference()(features, decoder_input_ids=torch.from_numpy(wanted)).logits[:, -1]
            wanted = np.concatenate([wanted, logits.argmax(-1, keepdim=True).numpy()], axis=1)
    from fastkernels.engine.llm import LLM, SamplingParams

    llm = LLM(TINY, device="cpu", max_num_seqs=3)
    load_weights(llm.model, reference().state_dict().items())
    prompts = [{"prompt_token_ids": [91, 5], "multi_modal_data": {"audio": clip}} for clip in clips()]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True))
    assert [[91, 5, *o.outputs[0].token_ids] for o in outputs] == wanted.tolist()
