"""Our CLIP text encoder and T5 encoder against transformers, float32 and float64 on the CPU, tiny models with
randomised weights.

References are built in code; nothing is fetched.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L1.embedding import RelativePositionBias
from fastkernels.baseline.L3.text_encoder import CLIPTextModel, T5EncoderModel
from torch import Tensor, nn
from transformers import CLIPTextConfig, T5Config
from transformers import CLIPTextModel as HfClip
from transformers import T5EncoderModel as HfT5
from transformers.models.t5.modeling_t5 import T5Attention, T5LayerNorm

from fastkernels import kernels
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.text_config import clip_arguments, clip_weights, t5_arguments, t5_weights
from fastkernels.nn.weights import export_weights, load_weights

# atol and rtol: in float32 of the architecture's fact sheet. In float64 transformers computes all in it but
# for its eager attention, which takes softmax in float32 and is not used here.
TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.float64: (1e-12, 1e-10)}
CLIP = {
    "model_type": "clip_text_model",
    "vocab_size": 100,
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "projection_dim": 24,
}
T5 = {
    "model_type": "t5",
    "vocab_size": 100,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "feed_forward_proj": "gated-gelu",
    "layer_norm_epsilon": 1e-6,
}
CONFIGS: dict[str, dict[str, Any]] = {"clip": CLIP, "t5": T5}
OURS = {
    "clip": (CLIPTextModel, clip_arguments, clip_weights),
    "t5": (T5EncoderModel, t5_arguments, t5_weights),
}
PREFIX = "text_model."  # the hub's file has it, the model's own state dict does not
BATCHES = [(1, 77), (3, 16), (2, 1)]
each = pytest.mark.parametrize("kind", OURS)
both = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def made(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    cls, arguments_of, weights_of = OURS[kind]
    try:
        arguments = arguments_of(ConfigReader(CONFIGS[kind] | changes))
        model = cls(**arguments)
    finally:
        torch.set_default_dtype(previous)
    model.weight_map = weights_of(arguments)
    return model


@lru_cache
def ours(kind: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    model = made(kind, dtype)
    random_weights(model, seed=0)
    return model


@lru_cache
def reference(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    """transformers' model with our weights."""
    cls, config = (HfClip, CLIPTextConfig) if kind == "clip" else (HfT5, T5Config)
    settings = {name: value for name, value in (CONFIGS[kind] | changes).items() if name != "model_type"}
    model = cls._from_config(config(**settings), attn_implementation="sdpa", dtype=dtype).eval()
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in export_weights(ours(kind, dtype))}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"encoder.embed_tokens.weight"}, "tied to shared.weight"
    if dtype == torch.float64:
        widen_norms(model)
    return model


def widen_norms(model: nn.Module) -> None:
    """transformers takes T5's mean square in float32 in any model, which is all that float64 could see."""
    for module in model.modules():
        if isinstance(module, T5LayerNorm):
            norm = nn.RMSNorm(len(module.weight), module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            module.forward = norm.forward


def prompts(shape: tuple[int, int], seed: int = 0) -> Tensor:
    """int64 [B, S]; the largest id of a prompt occurs twice, as where prompts are padded with it."""
    ids_BS = torch.randint(0, 99, shape, generator=torch.Generator().manual_seed(seed))
    if shape[1] > 3:
        ids_BS[:, shape[1] // 2] = ids_BS[:, -1] = 99
    return ids_BS


@torch.inference_mode()
def expected(kind: str, ids_BS: Tensor, dtype: torch.dtype = torch.float32, **changes: Any) -> Tensor:
    out = reference(kind, dtype, **changes)(input_ids=ids_BS)
    return out.pooler_output if kind == "clip" else out.last_hidden_state


@torch.inference_mode()
def run(model: nn.Module, ids_BS: Tensor) -> Tensor:
    return model(ids_BS)


def close(actual: Tensor, wanted: Tensor) -> None:
    atol, rtol = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(actual, wanted, atol=atol, rtol=rtol)


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@pytest.mark.parametrize("shape", BATCHES, ids=str)
@both
@each
def test_features_of_prompts(kind: str, dtype: torch.dtype, shape: tuple[int, int], implementation: str):
    ids_BS = prompts(shape)
    wanted = expected(kind, ids_BS, dtype)
    assert wanted.std() > 0.5, "weights too small for a strong test"
    with kernels.use(implementation):
        close(run(ours(kind, dtype), ids_BS), wanted)


@both
def test_t5_features_of_a_prompt_longer_than_the_largest_distance(dtype: torch.dtype):
    ids_BS = prompts((1, 300))
    close(run(ours("t5", dtype), ids_BS), expected("t5", ids_BS, dtype))


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (32, 100), (16, 64), (64, 512)])
def test_buckets_are_those_of_the_rounded_logarithm(buckets: int, distance: int):
    """The table holds its own row numbers: the bias is then the bucket."""
    bias = RelativePositionBias(buckets, 1, distance)
    bias.embedding.weight.copy_(torch.arange(buckets)[:, None])
    positions = torch.arange(700)
    away = positions - positions[:, None]
    wanted = T5Attention._relative_position_bucket(away, True, buckets, distance)
    assert torch.equal(bias(positions)[0].long(), wanted)


def test_clip_pools_at_the_first_end_of_sequence():
    """Where the configuration names the id; a prompt without it is pooled at its first token."""
    ids_BS = prompts((4, 12))
    ids_BS[1, 3] = ids_BS[2, 0] = 57
    ids_BS[1, 9] = 57
    model = made("clip", eos_token_id=57)
    load_weights(model, export_weights(ours("clip")))
    wanted = expected("clip", ids_BS, eos_token_id=57)
    close(run(model, ids_BS), wanted)
    assert not torch.allclose(wanted, run(ours("clip"), ids_BS)), "the other rule gives the same"


@each
def test_the_order_of_prompts_does_not_matter(kind: str):
    ids_BS = prompts((5, 16))
    close(run(ours(kind), ids_BS.flip(0)).flip(0), run(ours(kind), ids_BS))


WRONG = {
    "clip": [{"hidden_act": "gelu"}, {"layer_norm_eps": 1e-2}, {"num_attention_heads": 2}],
    "t5": [
        {"feed_forward_proj": "gated-silu"},
        {"layer_norm_epsilon": 1e-3},
        {"relative_attention_max_distance": 100},
    ],
}


@pytest.mark.parametrize(
    ("kind", "wrong"), [(kind, wrong) for kind, many in WRONG.items() for wrong in many], ids=str
)
def test_a_wrong_model_would_be_noticed(kind: str, wrong: dict[str, Any]):
    model = made(kind, **wrong)
    load_weights(model, export_weights(ours(kind)))
    ids_BS = prompts((2, 77))
    off = (run(model, ids_BS) - expected(kind, ids_BS)).abs().max()
    assert off > 100 * TOLERANCE[torch.float32][0], off


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("clip", f"text_model.encoder.layers.1.self_attn.{part}_proj.weight") for part in "qkv"),
        *(("t5", f"encoder.block.1.layer.0.SelfAttention.{part}.weight") for part in "qkvo"),
        *(("t5", f"encoder.block.0.layer.1.DenseReluDense.wi_{part}.weight") for part in (0, 1)),
        ("t5", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        ("t5", "shared.weight"),
    ],
)
def test_each_tensor_of_the_file_has_its_place(kind: str, name: str):
    """Loaded by name; another tensor in one place is another model."""
    own = dict(export_weights(ours(kind)))
    model = made(kind)
    load_weights(model, (own | {name: own[name].flip(0)}).items())
    off = (run(model, prompts((2, 16))) - expected(kind, prompts((2, 16)))).abs().max()
    assert off > 100 * TOLERANCE[torch.float32][0], off
    with pytest.raises(WeightsError, match=name.replace(".", r"\.")):
        load_weights(model, ((other, tensor) for other, tensor in own.items() if other != name))


@each
def test_weights_of_saved_files(kind: str, tmp_path):
    """What transformers writes is what the map reads."""
    from safetensors.torch import load_file

    reference(kind).save_pretrained(tmp_path)
    model = made(kind)
    load_weights(model, load_file(tmp_path / "model.safetensors").items())
    close(run(model, prompts((2, 16))), run(ours(kind), prompts((2, 16))))


def test_tables_that_older_files_hold_twice():
    shared = dict(export_weights(ours("t5")))["shared.weight"]
    for kind, name, extra in (
        ("clip", "text_model.embeddings.position_ids", torch.arange(77)[None]),
        ("t5", "encoder.embed_tokens.weight", shared.clone()),
    ):
        model = made(kind)
        load_weights(model, [*export_weights(ours(kind)), (name, extra)])
        assert torch.equal(run(model, prompts((1, 8))), run(ours(kind), prompts((1, 8))))
    with pytest.raises(WeightsError, match=r"encoder\.embed_tokens\.weight differs from shared\.weight"):
        load_weights(made("t5"), [*export_weights(ours("t5")), ("encoder.embed_tokens.weight", shared + 1)])


def test_parameter_counts():
    real_clip = CLIP | {
        "vocab_size": 49408,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    real_t5 = T5 | {
        "vocab_size": 32128, "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64,
    }  # fmt: skip
    for kind, config, count in (
        ("clip", real_clip, 123_060_480),
        ("clip", CLIP, 14_040),
        ("t5", real_t5, 4_762_310_656),
        ("t5", T5, 23_968),
    ):
        with torch.device("meta"):
            model = made(kind, **config)
        assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("clip", {"num_attention_heads": 5}, "hidden_size: 24 is no multiple"),
        ("clip", {"hidden_act": "relu"}, "hidden_act: 'relu'"),
        ("t5", {"feed_forward_proj": "relu"}, "feed_forward_proj: 'relu'"),
        ("t5", {"feed_forward_proj": None}, "feed_forward_proj: is missing"),
        ("t5", {"d_kv": 0}, "d_kv"),
    ],
)
def test_configurations_that_are_refused(kind: str, change: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        made(kind, **change)
