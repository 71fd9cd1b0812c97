"""Our pi0 against transformers, float32 on the CPU, a tiny policy with randomised weights. The reference is
built in code; nothing is fetched. It sees masked cameras and padded prompts, ours what is left of them.

The reference's features of a time are taken with angles in float64, as ours are: in float32 the highest
frequency, 1571, loses 1e-4 of its phase. What that makes of actions has a test of its own.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.pi0 import PI0ForConditionalGeneration
from torch import Tensor
from transformers import PI0Config
from transformers.models.pi0 import modeling_pi0

from fastkernels import Model, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.weights import destinations, load_weights

TOLERANCE = 5e-6  # from the architecture's fact sheet
CONFIGS = registry.architecture("pi0").configs
TINY = CONFIGS["tiny"].config
CAMERAS, PATCHES, PROMPT, CHUNK, DIM, STEPS = 3, 16, 7, 5, 8, 4
IMAGE_ID, PAD = 200, 0
# The second observation has one camera, not the first one, and a shorter prompt.
PROMPTS = [[2, 17, 5, 60, 9, 108], [2, 33, 8, 108]]
SEEN = torch.tensor([[True, True, True], [False, True, False]])


def config_of(fields: dict[str, Any]) -> PI0Config:
    return PI0Config(**{k: v for k, v in fields.items() if k not in ("architectures", "model_type")})


@lru_cache
def reference() -> modeling_pi0.PI0ForConditionalGeneration:
    """Weights of norms 0.5 .. 1.5 (of Gemma's, to which 1 is added, -0.5 .. 0.5), matrices 1 / sqrt(fan_in),
    biases 0.1: norms begin as zeros or ones, biases as zeros."""
    config = config_of(TINY)
    config._attn_implementation = "eager"
    made = modeling_pi0.PI0ForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in made.named_parameters():
        value = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1 and "embed_tokens" not in name and "position" not in name:
            value *= parameter[0].numel() ** -0.5
        elif parameter.dim() == 1 and name.endswith("bias"):
            value *= 0.1
        elif parameter.dim() == 1:
            value = torch.rand(parameter.shape, generator=generator) - 0.5
            value += "vision_tower" in name
        parameter.data.copy_(value)
    return made.eval()


def exact_features(times_B: Tensor) -> Tensor:
    """The formula of the reference's class, in float64."""
    fraction_J = torch.linspace(0, 1, 16, dtype=torch.float64)
    angle_BJ = times_B.double()[:, None] * 2 * math.pi / (4e-3 * 1000**fraction_J)
    return torch.cat((angle_BJ.sin(), angle_BJ.cos()), dim=1).float()


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference().embed_action_time.sinusoid_embeds, "forward", exact_features)


def ours() -> PI0ForConditionalGeneration:
    model = PI0ForConditionalGeneration(TINY)
    load_weights(model, reference().state_dict().items())
    return model


@lru_cache
def observations() -> dict[str, Tensor]:
    """As the reference takes them, images with their channels last."""
    generator = torch.Generator().manual_seed(1)
    slots = CAMERAS * PATCHES
    ids = torch.full((2, slots + PROMPT), PAD)
    ids[:, :slots] = IMAGE_ID
    valid = torch.zeros(2, slots + PROMPT, dtype=torch.int64)
    valid[:, :slots] = SEEN.repeat_interleave(PATCHES, dim=1)
    for row, prompt in enumerate(PROMPTS):
        ids[row, slots : slots + len(prompt)] = torch.tensor(prompt)
        valid[row, slots : slots + len(prompt)] = 1
    return {
        "pixels": torch.randint(0, 256, (2, CAMERAS, 56, 56, 3), dtype=torch.uint8, generator=generator),
        "ids": ids,
        "valid": valid,
        "state": torch.randn(2, DIM, generator=generator),
        "noise": torch.randn(2, CHUNK, DIM, generator=generator),
    }


def normalised(pixels: Tensor) -> Tensor:
    return pixels.float() / 127.5 - 1


def expected() -> Tensor:
    """Actions of both observations. The reference takes the features of the cameras that are seen where ids
    have placeholders, and those of cameras that are not in places that are masked: any will do."""
    given = observations()
    return reference().sample_actions(
        given["state"],
        given["ids"],
        normalised(given["pixels"]).movedim(-1, 2),
        given["noise"],
        given["valid"],
        torch.ones(2, CAMERAS, dtype=torch.bool),
    )


def request(row: int) -> dict[str, Any]:
    """Padded and masked, as a caller may have it."""
    given = observations()
    names = {"state": "state", "noise": "noise", "pixel_values": "pixels"}
    text = slice(CAMERAS * PATCHES, None)
    return {name: given[key][row] for name, key in names.items()} | {
        "input_ids": given["ids"][row, text],
        "attention_mask": given["valid"][row, text].bool(),
        "pixel_attention_mask": SEEN[row],
    }


def inputs(row: int) -> tuple[Tensor, Tensor, Tensor]:
    """State, prompt and normalised images of one observation, without what is masked."""
    given = observations()
    return (
        given["state"][row, None],
        torch.tensor(PROMPTS[row])[None],
        normalised(given["pixels"][row, SEEN[row]])[None],
    )


@torch.inference_mode()
def sampled(model: PI0ForConditionalGeneration, row: int) -> Tensor:
    """[A, X]"""
    state, ids, _ = inputs(row)
    pixels = observations()["pixels"][row, SEEN[row]][None]
    return model.sample_actions(state, ids, pixels, observations()["noise"][row, None], STEPS)[0]


def error(model: PI0ForConditionalGeneration, wanted: Tensor) -> float:
    return max((sampled(model, row) - wanted[row]).abs().max().item() for row in range(2))


@pytest.mark.usefixtures("exact")
def test_actions() -> None:
    wanted = expected()
    assert (wanted - observations()["noise"]).std() > 0.5, "weights too small for a strong test"
    assert error(ours(), wanted) < TOLERANCE


def test_the_reference_s_angles_of_float32_move_the_actions_little() -> None:
    assert TOLERANCE < error(ours(), expected()) < 2e-4


@pytest.mark.usefixtures("exact")
@torch.inference_mode()
def test_features_prefix_and_one_velocity() -> None:
    """Keys and values of every layer where the prefix is valid."""
    given, theirs, model = observations(), reference(), ours()
    pixels = normalised(given["pixels"])
    features = theirs.model.vlm.get_image_features(pixels.flatten(0, 1).movedim(-1, 1)).pooler_output
    assert (model.see(pixels.flatten(0, 1)) - features).abs().max() < TOLERANCE
    embedded = theirs.model.embed_prefix(
        given["ids"], pixels.movedim(-1, 2), torch.ones(2, CAMERAS, dtype=torch.bool)
    )
    cache = theirs.model.vlm(
        inputs_embeds=embedded,
        attention_mask=given["valid"],
        position_ids=given["valid"].cumsum(-1) - 1,
        token_type_ids=torch.zeros_like(given["ids"]),
        use_cache=True,
    ).past_key_values
    time = torch.tensor([0.3])
    for row in range(2):
        caches, valid = model.observe(*inputs(row)), given["valid"][row].bool()
        for (keys, values), layer in zip(caches, cache.layers, strict=True):
            for mine, whole in ((keys, layer.keys), (values, layer.values)):
                wanted = whole[row].transpose(0, 1)[valid]
                assert (mine[: len(wanted)] - wanted).abs().max() < TOLERANCE
        wanted = theirs(
            state=given["state"],
            noise=given["noise"],
            timestep=time.expand(2),
            input_ids=given["ids"],
            pixel_values=pixels.movedim(-1, 2),
            pixel_attention_mask=torch.ones(2, CAMERAS, dtype=torch.bool),
            attention_mask=given["valid"],
        ).logits[row]
        state, ids, images = inputs(row)
        found = model(state, given["noise"][row, None], time, ids, images)[0]
        assert (found - wanted).abs().max() < TOLERANCE


@torch.inference_mode()
def test_a_batch_of_two_equals_two_singles_and_the_state_leaves_the_prefix_alone() -> None:
    """Rows of a launch are apart though they share caches."""
    model, given = ours(), observations()
    state, noise = given["state"], given["noise"]
    ids = torch.tensor([[2, 17, 5], [2, 8, 108]])
    pixels = given["pixels"][:, :2]
    both = model.sample_actions(state, ids, pixels, noise, STEPS)
    for row in range(2):
        one = slice(row, row + 1)
        alone = model.sample_actions(state[one], ids[one], pixels[one], noise[one], STEPS)
        assert (both[row] - alone[0]).abs().max() < TOLERANCE
    assert (both[0] - both[1]).abs().max() > 0.1
    prefix = 2 * PATCHES + 3
    one, other = (model.observe(moved, ids[:1], normalised(pixels[:1])) for moved in (state[:1], state[1:]))
    for (mine, _), (moved, _) in zip(one, other):
        assert torch.equal(mine[:prefix], moved[:prefix])
        assert not torch.equal(mine[prefix], moved[prefix])


def _scaled_images(model: PI0ForConditionalGeneration) -> None:
    own = model.see
    model.see = lambda pixels: own(pixels) * 64**0.5


def _unscaled_text(model: PI0ForConditionalGeneration) -> None:
    model.embed_tokens.embed_scale = 1.0


def _norms_without_one(model: PI0ForConditionalGeneration) -> None:
    for name, parameter in model.named_parameters():
        if "layernorm.weight" in name and "vision" not in name and name != "post_layernorm.weight":
            parameter.sub_(1)


def _positions_of_slots(model: PI0ForConditionalGeneration) -> None:
    """As if cameras that are masked had places: those of the second observation's prompt begin at 48."""
    for layer in (*model.layers, *model.expert_layers):
        own = layer.forward
        layer.forward = lambda positions, *rest, own=own: own(
            positions + 32 * (positions >= PATCHES).long(), *rest
        )


def _state_sees_actions(model: PI0ForConditionalGeneration) -> None:
    def velocity(noise: Tensor, features: Tensor, caches: Any) -> Tensor:
        first = len(caches[0][0]) - CHUNK - 1
        states = observations()["state"]
        # The state token that an observation left: of which of the two, its number of places says.
        state = states[:1] if first > 50 else states[1:]
        tokens = torch.cat((model.state_proj(state)[:, None], model.actions(noise, features)), dim=1)
        hidden, residual = model.attend(model.expert_layers, tokens, caches, first)
        return model.action_out_proj(model.norm(hidden, residual)[0][1:])[None]

    model.velocity = velocity


def _padding_is_seen(model: PI0ForConditionalGeneration) -> None:
    own = model.observe
    model.observe = lambda state, ids, pixels: own(
        state, torch.nn.functional.pad(ids, (0, PROMPT - ids.shape[1])), pixels
    )


def _actions_stay_in_the_cache(model: PI0ForConditionalGeneration) -> None:
    own = model.velocity

    def velocity(noise: Tensor, features: Tensor, caches: Any) -> Tensor:
        found = own(noise, features, caches)
        caches[:] = [tuple(torch.cat((x, x[-CHUNK:])) for x in layer) for layer in caches]
        return found

    model.velocity = velocity


def _exact_gelu(model: PI0ForConditionalGeneration) -> None:
    for layer in model.vision_layers:
        layer.mlp.hidden_act = "gelu"


def _cosines_first(model: PI0ForConditionalGeneration) -> None:
    own = model.time_features.forward
    model.time_features.forward = lambda times: own(times).roll(16, dims=-1)


def _times_from_zero(model: PI0ForConditionalGeneration) -> None:
    own = model.time_features.forward
    model.time_features.forward = lambda times: own(times - 1 / STEPS)


WRONG = [
    _scaled_images,
    _unscaled_text,
    _norms_without_one,
    _positions_of_slots,
    _state_sees_actions,
    _padding_is_seen,
    _actions_stay_in_the_cache,
    _exact_gelu,
    _cosines_first,
    _times_from_zero,
]


@pytest.mark.usefixtures("exact")
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed() -> None:
    wanted = expected()
    for change in WRONG:
        model = ours()
        change(model)
        assert error(model, wanted) > 10 * TOLERANCE, change.__name__


@pytest.mark.usefixtures("exact")
def test_padded_prompts_and_masked_cameras_through_the_engine() -> None:
    model = Model("pi0", config="tiny", device="cpu")
    load_weights(model.model, reference().state_dict().items())
    for found, wanted in zip(model.run([request(0), request(1)]), expected(), strict=True):
        assert (found["actions"] - wanted).abs().max() < TOLERANCE


def test_names_of_the_real_checkpoints_have_their_places() -> None:
    """transformers' names, and openpi's."""
    fields = CONFIGS["base"].config
    with torch.device("meta"):
        theirs, model = (
            modeling_pi0.PI0ForConditionalGeneration(config_of(fields)),
            (PI0ForConditionalGeneration(fields)),
        )
    places, unnamed = destinations(model)
    assert not unnamed
    wanted = {key: list(tensor.shape) for key, tensor in theirs.state_dict().items()}
    unused = {"model.dit.embed_tokens.weight", "model.vlm.language_model.norm.weight"}
    assert wanted.keys() - places.keys() == unused
    assert all(model.weight_map.ignores(name) for name in unused)
    assert all(place.shape == wanted[name] for name, place in places.items())
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == 3_501_372_176 - 263_323_648 - 2048


def openpi(name: str) -> str:
    for theirs, other in (
        ("model.vlm.language_model.embed_tokens.weight", "paligemma_with_expert.paligemma.lm_head.weight"),
        ("model.dit.embed_tokens.weight", "paligemma_with_expert.gemma_expert.lm_head.weight"),
        ("model.vlm.vision_tower.", "paligemma_with_expert.paligemma.model.vision_tower.vision_model."),
        ("model.vlm.", "paligemma_with_expert.paligemma.model."),
        ("model.dit.", "paligemma_with_expert.gemma_expert.model."),
        ("embed_action_time.", ""),
    ):
        if name.startswith(theirs):
            return other + name.removeprefix(theirs)
    return name


def test_weights_of_an_openpi_file() -> None:
    file = {openpi(name): tensor for name, tensor in reference().state_dict().items()}
    model = PI0ForConditionalGeneration(TINY)
    load_weights(model, file.items())
    for name, parameter in ours().named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
    with pytest.raises(WeightsError, match=r"missing +embed_action_time\.state_proj\.bias"):
        load_weights(model, [(name, t) for name, t in file.items() if name != "state_proj.bias"])


@pytest.mark.parametrize(
    ("section", "change", "says"),
    [
        ("dit_config", {"head_dim": 8}, "dit_config.head_dim: 8: the language model's keys"),
        ("dit_config", {"model_type": "gemma2"}, "dit_config.model_type: 'gemma2' is not supported"),
        ("", {"chunk_size": 0}, "chunk_size: must be an integer of at least 1"),
    ],
)
def test_configurations_that_are_refused(section: str, change: dict[str, object], says: str) -> None:
    fields = TINY | ({section: TINY[section] | change} if section else change)
    with pytest.raises(UsageError, match=says):
        PI0ForConditionalGeneration(fields)
