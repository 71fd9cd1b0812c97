"""pi0 in transformers: its own sampling with a cache of the prefix, images normalised on the device.

`default` is `sample_actions`. `compiled` compiles and captures the prefix and one denoising step, which hand
keys and values on as tensors: the library's own loop lets its cache grow and cuts it again, which no graph
can hold. Both sides get whole prompts and all cameras, so the reference computes no padding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, on_device, requests
from references.transformers_lm import filled


class Transformers:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled")

    def __init__(self, machine: Machine) -> None:
        import transformers

        given = {k: v for k, v in machine.config.items() if k not in ("architectures", "model_type")}
        config = transformers.PI0Config(**given)
        self._machine, self._steps = machine, machine.config["num_inference_steps"]
        self._model = filled(transformers.PI0ForConditionalGeneration._from_config, machine, config)
        self.version = transformers.__version__

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        batch, device = requests(workload, self._machine), self._machine.device
        dtype = getattr(torch, self._machine.dtype)
        state, noise = (
            torch.stack([request[name] for request in batch]).to(device, dtype) for name in ("state", "noise")
        )
        text_BN = torch.stack([request["input_ids"] for request in batch])
        cameras, tokens = workload.shapes[0]["cameras"], _tokens_of_an_image(self._machine.config)
        placeholders = torch.full(
            (len(batch), cameras * tokens), self._machine.config["vlm_config"]["image_token_id"]
        )
        ids = torch.cat((placeholders, text_BN), dim=1).to(device)
        valid, seen = torch.ones_like(ids), torch.ones(len(batch), cameras, dtype=torch.bool, device=device)
        pixels = [request["pixel_values"] for request in batch]
        sample = self._model.sample_actions if setting == "default" else _compiled(self._model, self._steps)

        @torch.inference_mode()
        def run() -> int:
            images = (on_device(pixels, device, torch.float32) / 127.5 - 1).to(dtype).movedim(-1, 2)
            return len(sample(state, ids, images, noise, valid, seen))

        return run


def _tokens_of_an_image(config: dict[str, Any]) -> int:
    vision = config["vlm_config"]["vision_config"]
    return (vision["image_size"] // vision["patch_size"]) ** 2


def _compiled(model: Any, steps: int) -> Callable[..., Any]:
    """`sample_actions` for observations without padding, in two graphs: the prefix, and one step."""
    import torch
    from transformers import DynamicCache

    @partial(torch.compile, mode="reduce-overhead", dynamic=False)
    def prefix(ids: Any, images: Any) -> Any:
        vlm, (rows, cameras) = model.model.vlm, images.shape[:2]
        features = vlm.get_image_features(images.flatten(0, 1)).pooler_output
        text = vlm.get_input_embeddings()(ids)
        embedded = torch.cat((features.unflatten(0, (rows, cameras)).flatten(1, 2), text), dim=1)
        places = torch.arange(embedded.shape[1], device=ids.device)[None]
        cache, turned = DynamicCache(), vlm.language_model.rotary_emb(embedded, places)
        for layer in vlm.language_model.layers:  # without its mask, so that SDPA is flash attention
            layer.self_attn.is_causal = False
            embedded = layer(embedded, position_embeddings=turned, past_key_values=cache)
        return [(layer.keys, layer.values) for layer in cache.layers]

    @partial(torch.compile, mode="reduce-overhead", dynamic=False)
    def step(pairs: Any, state: Any, noise: Any, time: Any, mask: Any) -> Any:
        cache = DynamicCache()
        for index, (keys, values) in enumerate(pairs):
            cache.update(keys, values, index)
        embedded = model.embed_action_time(state, noise, time)
        places = torch.arange(pairs[0][0].shape[2], mask.shape[-1], device=noise.device)[None]
        hidden = model.model.dit(
            inputs_embeds=embedded, attention_mask=mask, position_ids=places, past_key_values=cache
        ).last_hidden_state
        return noise - model.action_out_proj(hidden[:, -noise.shape[1] :]) / steps

    def sample(state: Any, ids: Any, images: Any, noise: Any, *_: Any) -> Any:
        text = ids[:, -(ids.shape[1] - images.shape[1] * _tokens_of_an_image(model.config.to_dict())) :]
        torch.compiler.cudagraph_mark_step_begin()
        pairs = [(keys.clone(), values.clone()) for keys, values in prefix(text, images)]
        new = noise.shape[1] + 1
        seen = torch.ones(1, 1, new, pairs[0][0].shape[2] + new, dtype=torch.bool, device=ids.device)
        seen[..., 0, -noise.shape[1] :] = False
        for index in range(steps):
            time = torch.full((len(ids),), 1 - index / steps, device=ids.device)
            torch.compiler.cudagraph_mark_step_begin()
            noise = step(pairs, state, noise, time, seen).clone()
        return noise

    return sample


_workloads: Any = partial(one_batch, "pi0")
COMPARISONS = [Comparison("pi0", "transformers", Ours, Transformers, _workloads)]
