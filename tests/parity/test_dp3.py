"""Our 3D Diffusion Policy against its equations in float64 (dp3_equations.py), float32 on the CPU, tiny
policies of both kinds with randomised weights; its sampler against diffusers' scheduler."""

from __future__ import annotations

import itertools
import json
from functools import lru_cache
from typing import Any

import diffusers
import pytest
import torch
from fastkernels.baseline.L4.dp3 import DP3
from safetensors.torch import save_file
from torch import Tensor

from fastkernels import Model, registry
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.ddim import Schedule
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights
from tests.parity.dp3_equations import WRONG, Policy

TOLERANCE = 1e-5  # from the architecture's fact sheet
CONFIGS = {name: one.config for name, one in registry.architecture("dp3").configs.items()}
KINDS = ("tiny", "tiny-original")
SCHEDULER = CONFIGS["tiny"]["noise_scheduler"]
# Of the reference's classes. The tiny one counts its normaliser, too: of each number scale, offset and four
# statistics.
PARAMETERS = {
    "simple_dp3": 13_218_436,
    "simple_dp3_original": 7_438_980,
    "tiny-original": 279_530 - 6 * (6 + 7 + 4),
}
FULL = {"down_dims": [512, 1024, 2048]}, 255_138_180


@lru_cache
def ours(kind: str) -> DP3:
    model = DP3(CONFIGS[kind])
    random_weights(model, seed=0)
    return model


@lru_cache
def weights(kind: str) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in export_weights(ours(kind))}


def equations(kind: str, wrong: str = "") -> Policy:
    return Policy({name: each.double() for name, each in weights(kind).items()}, CONFIGS[kind], wrong)


def seen(batch: int = 3, points: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((batch, 2, points, 6), (batch, 2, 7), (batch, 16, 4))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)  # pyright: ignore


def error(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found.double() - wanted.double()).abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_actions_are_those_of_the_equations(kind: str):
    policy = equations(kind)
    wanted = policy.predict_action(*(each.double() for each in seen()))
    assert 0.01 < policy.clipped < 0.25, "some predictions are clipped, and few"
    assert (wanted - wanted.mean(0)).std() > 0.1, "weights too small for a strong test"
    with torch.inference_mode():
        assert error(ours(kind)(*seen()), wanted) <= TOLERANCE


@pytest.mark.parametrize("wrong", WRONG)
def test_what_implementations_get_wrong_would_show(wrong: str):
    with torch.inference_mode():
        found = ours("tiny")(*seen())
    mistaken = equations("tiny", wrong).predict_action(*(each.double() for each in seen()))
    assert error(found, mistaken) > 10 * TOLERANCE


def test_the_sampler_is_diffusers():
    theirs = diffusers.DDIMScheduler(**SCHEDULER)
    *table, last = Schedule.of(ConfigReader(SCHEDULER), 100).levels
    levels = torch.tensor(table[::-1], dtype=torch.float64)
    torch.testing.assert_close(levels.float(), theirs.alphas_cumprod, rtol=2e-5, atol=0)  # theirs is float32
    assert theirs.final_alpha_cumprod == last
    theirs.alphas_cumprod = levels
    for steps in (10, 3, 100):
        theirs.set_timesteps(steps)
        schedule = Schedule.of(ConfigReader(SCHEDULER), steps)
        assert list(schedule.timesteps) == theirs.timesteps.tolist()
        generator = torch.Generator().manual_seed(2)
        for t, step in zip(schedule.timesteps, schedule, strict=True):
            x, predicted = (
                torch.randn(16, 4, generator=generator, dtype=torch.float64) * 2 for _ in range(2)
            )
            wanted = theirs.step(predicted, t, x).prev_sample
            torch.testing.assert_close(step(x, predicted), wanted, rtol=0, atol=1e-12)


@torch.inference_mode()
def test_points_are_a_set_and_requests_do_not_meet():
    """Permuted, and with a point twice, a cloud is the same; a batch is its requests."""
    model, (cloud, state, noise) = ours("tiny"), seen()
    wanted = model(cloud, state, noise)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    assert error(model(cloud[:, :, order], state, noise), wanted) <= TOLERANCE
    assert error(model(torch.cat((cloud, cloud[:, :, 5:6]), 2), state, noise), wanted) <= TOLERANCE
    coloured = torch.cat((cloud[..., :3], 9 * cloud[..., 3:]), -1)
    assert torch.equal(model(coloured, state, noise), wanted), "colours are left out"
    alone = torch.cat([model(*(each[i : i + 1] for each in (cloud, state, noise))) for i in range(3)])
    assert error(alone, wanted) <= TOLERANCE
    assert error(model(cloud.flip(1), state, noise), wanted) > 10 * TOLERANCE


# ---------------------------------------------------------------- checkpoints


def names(config: dict[str, Any]) -> dict[str, list[int]]:
    """Tensors of the policy's state dict, from the layout that its fact sheet gives."""
    found: dict[str, list[int]] = {}

    def add(name: str, *shape: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = list(shape), [shape[0]]

    for key, size in (("point_cloud", 6), ("agent_pos", 7), ("action", 4)):
        found |= {f"normalizer.params_dict.{key}.{part}": [size] for part in ("scale", "offset")}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise((3, 64, 128, 256))):
        add(f"obs_encoder.extractor.mlp.{3 * layer}", outputs, inputs)
        add(f"obs_encoder.extractor.mlp.{3 * layer + 1}", outputs)
    add("obs_encoder.extractor.final_projection.0", 64, 256)
    add("obs_encoder.extractor.final_projection.1", 64)
    add("obs_encoder.state_mlp.0", 64, 7)
    add("obs_encoder.state_mlp.2", 64, 64)
    step, dims, blocks = (
        config[key] for key in ("diffusion_step_embed_dim", "down_dims", "blocks_per_stage")
    )
    add("model.diffusion_step_encoder.1", 4 * step, step)
    add("model.diffusion_step_encoder.3", step, 4 * step)

    def stage(name: str, inputs: int, outputs: int) -> None:
        for block in range(blocks):
            channels, at = inputs if block == 0 else outputs, f"model.{name}.{block}"
            for half, width in enumerate((channels, outputs)):
                add(f"{at}.blocks.{half}.block.0", outputs, width, 5)
                add(f"{at}.blocks.{half}.block.1", outputs)
            add(f"{at}.cond_encoder.1", 2 * outputs, step + 256)
            if channels != outputs:
                add(f"{at}.residual_conv", outputs, channels, 1)

    for i, (inputs, outputs) in enumerate(itertools.pairwise((4, *dims))):
        stage(f"down_modules.{i}", inputs, outputs)
        if i < 2:
            add(f"model.down_modules.{i}.{blocks}.conv", outputs, outputs, 3)
    stage("mid_modules", dims[-1], dims[-1])
    for j, dim in enumerate(dims[-2::-1]):
        stage(f"up_modules.{j}", 2 * dims[-1 - j], dim)
        add(f"model.up_modules.{j}.{blocks}.conv", dim, dim, 4)
    add("model.final_conv.0.block.0", dims[0], dims[0], 5)
    add("model.final_conv.0.block.1", dims[0])
    add("model.final_conv.1", 4, dims[0], 1)
    return found


@pytest.mark.parametrize("name", [*PARAMETERS, "full"])
def test_names_shapes_and_number_of_a_checkpoint(name: str):
    config = {**CONFIGS["simple_dp3"], **FULL[0]} if name == "full" else CONFIGS[name]
    with torch.device("meta"):
        model = DP3(config)
    places, unnamed = destinations(model)
    assert not unnamed
    assert {name: list(place.shape) for name, place in places.items()} == names(config)
    ignored = ("normalizer.params_dict.action.input_stats.min", "mask_generator._dummy_variable")
    assert all(map(model.weight_map.ignores, ignored))
    count = sum(
        each.numel() for part in (model.obs_encoder, model.model, model.film) for each in part.parameters()
    )
    assert count == (FULL[1] if name == "full" else PARAMETERS[name])


def test_a_folder_with_missing_surplus_and_misshapen_tensors(tmp_path):
    given = dict(weights("tiny"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["tiny"]))
    given["mask_generator._dummy_variable"] = torch.zeros(1)
    save_file(given, tmp_path / "model.safetensors")
    loaded = load_model(find(tmp_path), Overlay.over_baseline(), torch.device("cpu"), torch.float32, 0)
    with torch.inference_mode():
        assert torch.equal(loaded(*seen()), ours("tiny")(*seen()))
    del given["model.mid_modules.1.cond_encoder.1.bias"]
    given["model.up_modules.2.0.cond_encoder.1.bias"] = torch.zeros(3)
    given["model.up_modules.0.2.conv.weight"] = torch.zeros(32, 32, 3)
    save_file(given, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        load_model(find(tmp_path), Overlay.over_baseline(), torch.device("cpu"), torch.float32, 0)
    for named in ("mid_modules.1.cond_encoder.1.bias", "up_modules.2.0", "up_modules.0.2.conv.weight"):
        assert named in str(caught.value)


# ---------------------------------------------------------------- the engine


@lru_cache
def served() -> Model:
    return Model("dp3", config="tiny", device="cpu", seed=0)


def request(seed: int = 5) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    cloud, state = torch.randn(2, 64, 6, generator=generator), torch.randn(2, 7, generator=generator)
    return {"point_cloud": cloud, "agent_pos": state, "seed": seed}


def test_requests_are_answered_as_alone():
    asked = [request(seed) for seed in range(3)]
    answers = served().run(asked)
    for one, answer in zip(asked, answers):
        noise = torch.randn(16, 4, generator=torch.Generator().manual_seed(one["seed"]))
        inputs = (one["point_cloud"], one["agent_pos"], noise)
        with torch.inference_mode():
            wanted = served().model(*(each[None] for each in inputs))[0]
        assert error(answer["action_pred"], wanted) <= TOLERANCE
        assert torch.equal(answer["action"], answer["action_pred"][1:9])
    assert error(answers[0]["action"], answers[1]["action"]) > 0.1


BAD = {
    "point_cloud must be floats": {"point_cloud": torch.zeros(2, 63, 6)},
    r"\[2, 64, 6\], not float32 \[2, 0, 6\]": {"point_cloud": torch.zeros(2, 0, 6)},
    r"agent_pos must be floats \[2, 7\], not int64": {"agent_pos": torch.zeros(2, 7, dtype=torch.int64)},
    "point_cloud has values that are not finite": {"point_cloud": torch.full((2, 64, 6), torch.nan)},
    "seed must be an integer from 0": {"seed": -1},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_request_is_refused_and_harms_no_other(message: str):
    good, bad = request(), {**request(), **BAD[message]}
    refused, answer = served().run([bad, good], errors="return")
    with pytest.raises(RequestError, match=message):
        raise refused
    assert error(answer["action"], served().run([good])[0]["action"]) == 0


REFUSED = {
    "down_dims: 20 channels are no 8 groups": {"down_dims": [16, 20, 48]},
    "horizon: 10 is no multiple of 4": {"horizon": 10},
    "kernel_size: must be odd": {"kernel_size": 4},
    "n_action_steps: ends 17 frames on": {"n_action_steps": 16},
    "use_pc_color: True is not supported": {"use_pc_color": True},
    "noise_scheduler.prediction_type: 'epsilon'": {
        "noise_scheduler": {**SCHEDULER, "prediction_type": "epsilon"}
    },
    "noise_scheduler.clip_sample: false": {"noise_scheduler": {**SCHEDULER, "clip_sample": False}},
    "num_inference_steps, 101": {"num_inference_steps": 101},
}


@pytest.mark.parametrize("message", REFUSED)
def test_another_policy_is_refused_by_its_key(message: str):
    with torch.device("meta"), pytest.raises(UsageError, match=message):
        DP3({**CONFIGS["tiny"], **REFUSED[message]})
