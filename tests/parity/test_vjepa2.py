"""Our V-JEPA 2 against transformers, float32 on the CPU, a tiny model with randomised weights. References are
built in code; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L1.video_rope import ApplyVideoRope, VideoRopeTable
from fastkernels.baseline.L4.vjepa2 import VJEPA2Model
from torch import Tensor
from transformers import VJEPA2Config
from transformers.models.vjepa2 import modeling_vjepa2

from fastkernels import registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.weights import destinations, load_weights

TOLERANCE = 2e-5  # from the architecture's fact sheet
CONFIGS = registry.architecture("vjepa2").configs
TINY = CONFIGS["tiny"].config | {"layer_norm_eps": CONFIGS["vitl"].config["layer_norm_eps"]}
HEAD = 16  # of 4 features for each axis, and 4 that stay as they are
# Places in any order, others for each video, targets behind the contexts and before them.
CONTEXT = torch.tensor([[3, 60, 17, 0, 33], [63, 5, 6, 41, 20]])
TARGET = torch.tensor([[62, 1, 34], [2, 40, 61]])
Found = dict[str, Tensor]


def config_of(fields: dict[str, Any]) -> VJEPA2Config:
    return VJEPA2Config(**{k: v for k, v in fields.items() if k not in ("architectures", "model_type")})


@lru_cache
def reference() -> modeling_vjepa2.VJEPA2ForVideoClassification:
    """Norm weights 1 +- 0.1, everything else normal with std 0.1: mask tokens and biases begin as zeros."""
    made = modeling_vjepa2.VJEPA2ForVideoClassification._from_config(
        config_of(TINY), attn_implementation="sdpa"
    )
    generator = torch.Generator().manual_seed(0)
    for name, parameter in made.named_parameters():
        value = 0.1 * torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(value + 1 if "norm" in name and name.endswith("weight") else value)
    return made.eval()


def ours(**changes: Any) -> VJEPA2Model:
    model = VJEPA2Model(TINY | changes)
    load_weights(model, reference().state_dict().items())
    return model


def video(frames: int = 8, videos: int = 2) -> Tensor:
    """[B, F, Y, X, C]"""
    generator = torch.Generator().manual_seed(frames)
    return torch.randn(videos, frames, TINY["crop_size"], TINY["crop_size"], 3, generator=generator)


@torch.inference_mode()
def expected(pixels: Tensor, context: Tensor | None = None, target: Tensor | None = None) -> Found:
    masks = {} if context is None else {"context_mask": [context], "target_mask": [target]}
    out = reference().vjepa2(pixels.transpose(-1, -2).transpose(-2, -3), **masks)
    return {
        "last": out.last_hidden_state,
        "target": out.predictor_output.target_hidden_state,
        "predicted": out.predictor_output.last_hidden_state,
    }


@torch.inference_mode()
def found(model: VJEPA2Model, pixels: Tensor, context: Tensor, target: Tensor) -> Found:
    return dict(zip(("last", "target", "predicted"), model(pixels, context, target)))


def error(found: Found, wanted: Found) -> float:
    assert all(found[name].shape == wanted[name].shape for name in wanted)
    return max((found[name] - wanted[name]).abs().max().item() for name in wanted)


def test_encoder_and_predictor_at_places_of_any_order() -> None:
    wanted = expected(video(), CONTEXT, TARGET)
    assert min(value.std() for value in wanted.values()) > 0.3, "weights too small for a strong test"
    assert error(found(ours(), video(), CONTEXT, TARGET), wanted) < TOLERANCE


@pytest.mark.parametrize("frames", [8, 4, 1])
def test_all_places(frames: int) -> None:
    """Without masks the reference takes every token for both. A single frame is repeated."""
    wanted = expected(video(frames))
    places = torch.arange(wanted["last"].shape[1]).expand(2, -1)
    assert places.shape[1] == max(1, frames // 2) * 16
    assert error(found(ours(), video(frames), places, places), wanted) < TOLERANCE


@torch.inference_mode()
def test_the_classifier() -> None:
    wanted = reference()(video().permute(0, 1, 4, 2, 3)).logits
    assert wanted.std() > 0.1
    assert (ours().classify(video()) - wanted).abs().max() < TOLERANCE


@torch.inference_mode()
def test_without_the_predictor_none_of_it_runs() -> None:
    model = ours()
    last, target, predicted = model(video(), CONTEXT, TARGET, skip_predictor=True)
    wanted = expected(video(), CONTEXT, TARGET)
    assert (
        error({"last": last, "target": target}, {name: wanted[name] for name in ("last", "target")})
        < TOLERANCE
    )
    assert predicted.shape == (2, 0, 64)


@torch.inference_mode()
def test_the_order_of_places_does_not_matter() -> None:
    """The reference sorts; attention does not see an order, so ours need not."""
    model, turned = ours(), [2, 0, 1]
    wanted = found(model, video(), CONTEXT, TARGET)
    other = found(model, video(), CONTEXT.flip(1), TARGET[:, turned])
    assert (other["predicted"] - wanted["predicted"][:, turned]).abs().max() < TOLERANCE


def _proper_rotation(model: VJEPA2Model) -> None:
    """Both features of a pair by one angle."""
    _change_tables(
        model, lambda cos_sin: cos_sin.unflatten(-1, (-1, 2))[..., :1].expand(-1, -1, 2).flatten(1)
    )


def _interleaved_angles(model: VJEPA2Model) -> None:
    """Each angle twice in a row instead of all of them twice."""

    def change(cos_sin: Tensor) -> Tensor:
        halves = [part.unflatten(-1, (2, -1)) for part in cos_sin.chunk(2, dim=-1)]
        return torch.cat([part.transpose(-1, -2).flatten(1) for part in halves], dim=-1)

    _change_tables(model, change)


def _no_rest(model: VJEPA2Model) -> None:
    """Every feature belongs to some axis."""
    for table in tables(model):
        table.axis_dim = 2 * -(-table.head_dim // 6)
        own = table.forward
        size = table.head_dim

        def forward(
            ids: Tensor, own: Callable = own, table: VideoRopeTable = table, size: int = size
        ) -> Tensor:
            table.head_dim = 3 * table.axis_dim
            whole = own(ids)
            table.head_dim = size
            return torch.cat([part[:, :size] for part in whole.chunk(2, dim=-1)], dim=-1)

        table.forward = forward


def _columns_before_rows(model: VJEPA2Model) -> None:
    own = model.token_ids
    model.token_ids = lambda *given: own(*given)[:, [0, 2, 1]]


def _channels_first(model: VJEPA2Model) -> None:
    model.patches.weight.copy_(model.patches.weight.clone().view(-1, 3, 2, 8, 8).permute(0, 2, 3, 4, 1))


def _first_mask_token(model: VJEPA2Model) -> None:
    model.predictor.mask_index = 0


def _renumbered_places(model: VJEPA2Model) -> None:
    """Places of the predictor's tokens from 0 on."""
    for layer in model.predictor.layers:
        own = layer.forward
        layer.forward = lambda x, table, places, *rest, own=own: own(
            x, table, torch.arange(len(places)) % rest[1], *rest
        )


def _masked_encoder(model: VJEPA2Model) -> None:
    """Places are chosen before the encoder."""
    own = model.encode

    def encode(pixels: Tensor) -> Tensor:
        hidden = model.patches(pixels)
        hidden[:, 32:] = 0
        embed, model.patches.forward = model.patches.forward, lambda _: hidden
        result = own(pixels)
        model.patches.forward = embed
        return result

    model.encode = encode


def _tanh_gelu(model: VJEPA2Model) -> None:
    for layer in (*model.layers, *model.predictor.layers):
        layer.mlp.hidden_act = "gelu_tanh"


def _wrong_epsilon(model: VJEPA2Model) -> None:
    model.layernorm.eps = 1e-3


def _half_precision_table(model: VJEPA2Model) -> None:
    _change_tables(model, lambda cos_sin: cos_sin.bfloat16().float())


def tables(model: VJEPA2Model) -> list[VideoRopeTable]:
    return [model.rope_table, model.predictor.rope_table]


def _change_tables(model: VJEPA2Model, change: Callable[[Tensor], Tensor]) -> None:
    for table in tables(model):
        own = table.forward
        table.forward = lambda ids, own=own: change(own(ids))


WRONG = [
    _proper_rotation,
    _interleaved_angles,
    _no_rest,
    _columns_before_rows,
    _channels_first,
    _first_mask_token,
    _renumbered_places,
    _masked_encoder,
    _tanh_gelu,
    _wrong_epsilon,
    _half_precision_table,
]


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(change: Callable[[VJEPA2Model], None]) -> None:
    model = ours()
    change(model)
    assert error(found(model, video(), CONTEXT, TARGET), expected(video(), CONTEXT, TARGET)) > 10 * TOLERANCE


@torch.inference_mode()
def test_a_pooler_that_norms_its_query_would_be_noticed() -> None:
    model = ours()
    wanted = model.classify(video())
    model.pooler.query_tokens.copy_(model.pooler.layer_norm1(model.pooler.query_tokens))
    assert (model.classify(video()) - wanted).abs().max() > 10 * TOLERANCE


@pytest.mark.parametrize("head", [64, 32, HEAD, 12, 10])
def test_rope_is_the_reference_s(head: int) -> None:
    """20, 10, 4, 4 and 2 features of each axis; the rest stay as they are, to the bit. A single pair has one
    angle, and keeps its length."""
    config = config_of(TINY)
    theirs = modeling_vjepa2.VJEPA2RopeAttention(config, 4 * head, 4)
    tokens = 64
    q, k = torch.randn(2, tokens, 4, head, generator=torch.Generator().manual_seed(head))
    ids_N3 = VJEPA2Model.token_ids(ours(), tokens, torch.device("cpu"))
    places = torch.randperm(tokens, generator=torch.Generator().manual_seed(1))
    table = VideoRopeTable(head)(ids_N3)
    assert table.dtype == torch.float32
    position_ids = theirs.get_position_ids(q[None].flatten(2), masks=places[None])
    rest = 3 * theirs.d_dim
    for given, mine in zip((q, k), ApplyVideoRope()(q, k, table, places)):
        wanted = theirs.apply_rotary_embeddings(given.transpose(0, 1)[None], position_ids)[0].transpose(0, 1)
        assert (mine - wanted).abs().max() < TOLERANCE
        assert torch.equal(mine[..., rest:], given[..., rest:])
        is_longer = (mine.norm(dim=-1) / given.norm(dim=-1) - 1).abs().max() > 0.01
        assert is_longer == (theirs.d_dim > 2)


def test_a_model_of_16_bits_has_tables_of_32() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        tables = VideoRopeTable(HEAD), VideoRopeTable(12)
    finally:
        torch.set_default_dtype(torch.float32)
    ids = torch.tensor([[31, 15, 15]])
    for table, exact in zip(tables, (VideoRopeTable(HEAD), VideoRopeTable(12))):
        assert torch.equal(table(ids), exact(ids))


def test_weights_of_a_file() -> None:
    """A classifier's file and a pretrained one's; without its tensors no classifier is made."""
    file = reference().state_dict()
    pretrained = {name.removeprefix("vjepa2."): t for name, t in file.items() if name.startswith("vjepa2.")}
    plain = VJEPA2Model(TINY | {"architectures": ["VJEPA2Model"]})
    load_weights(plain, pretrained.items())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, ours().get_parameter(name))
    with pytest.raises(WeightsError, match=r"pooler\.query_tokens"):
        load_weights(VJEPA2Model(TINY), {f"vjepa2.{name}": t for name, t in pretrained.items()}.items())
    with pytest.raises(WeightsError, match=r"unexpected +encoder\.layer\.7\.norm1\.bias"):
        load_weights(plain, [*pretrained.items(), ("encoder.layer.7.norm1.bias", torch.zeros(64))])


@pytest.mark.parametrize("name", ["vitl", "vitl-ssv2"])
def test_every_tensor_of_the_real_checkpoints_has_its_place(name: str) -> None:
    fields = CONFIGS[name].config
    kind = getattr(modeling_vjepa2, fields["architectures"][0])
    with torch.device("meta"):
        theirs, model = kind(config_of(fields)), VJEPA2Model(fields)
    places, unnamed = destinations(model)
    assert not unnamed
    wanted = {key: list(tensor.shape) for key, tensor in theirs.state_dict().items()}
    assert {key: place.shape for key, place in places.items()} == wanted
    count = sum(parameter.numel() for parameter in model.parameters())
    base, classifier = 325_971_328, 49_336_320 + 174 * 1025
    assert count == base + (classifier if name == "vitl-ssv2" else 0)


def test_parameters_of_the_tiny_model() -> None:
    assert sum(parameter.numel() for parameter in ours().parameters()) == 334_087


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_attention_heads": 3}, "hidden_size: 64 is no multiple of 2 times num_attention_heads, 3"),
        (
            {"pred_num_attention_heads": 5},
            "pred_hidden_size: 48 is no multiple of 2 times pred_num_attention",
        ),
        ({"hidden_act": "relu"}, "hidden_act: 'relu' is not supported"),
        ({"crop_size": 36}, "crop_size: 36 is no multiple of patch_size, 8"),
        ({"num_labels": 0}, "num_labels: must be an integer of at least 1"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        VJEPA2Model(TINY | change)


def test_classes_may_have_names() -> None:
    named = {"num_labels": None, "id2label": {str(i): f"class {i}" for i in range(7)}}
    with torch.device("meta"):
        assert VJEPA2Model(TINY | named).classifier.weight.shape == (7, 64)
