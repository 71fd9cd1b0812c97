"""pi0: images, a prompt and the state of a robot to a chunk of its next actions, by flow matching.

    f = projector(layer_norm(siglip(images))),  y = sqrt(D) E[ids]
    K_i, V_i = those of layer_i of the language model over [f | y], and of the expert over state Ws^T + bs
    v(x, t) = rms_norm(expert(actions(x, t); K, V); 1 + w) Wo^T + bo
    x_0 = noise,  x_{n+1} = x_n - v(x_n, 1 - n/N) / N                    n = 0 .. N - 1

B observations of C cameras each, N tokens of a prompt; A actions of a chunk, X values of one, S of a state; D
hidden, M that of the expert. The prefix, cameras and then prompt, sees itself, the state the prefix too, the
actions all of it and each other. As nothing before them sees the actions, keys and values of the prefix and
of the state are computed once for all steps; those of the actions are overwritten by the next step. Images
have no scale, unlike texts. A camera that is not there and padding of a prompt are left out: the others have
the positions that they have beside masked ones. Parameters and activations have the dtype of the
module; times, their features and, between steps, x are float32. `config` is the complete Hugging Face
configuration of PI0ForConditionalGeneration.
Mirrors transformers.models.pi0.modeling_pi0.PI0ForConditionalGeneration without its masks, images with their
channels last (openpi: PI0Pytorch.sample_actions).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import described
from fastkernels.nn.block_filling import require_number
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.decoder_weights import gated_mlp_weights
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, RequestError, Stage
from fastkernels.nn.rope_config import rope_parameters
from fastkernels.nn.weight_map import WeightMap

from ..L1.embedding import ScaledEmbedding
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.rms_norm import GemmaRMSNorm
from ..L1.sinusoidal import FlowTimesteps
from ..L2.patch_embed import LearntPatchEmbed
from ..L2.timestep_embedding import ActionTimeEmbedding
from ..L3.bidirectional_layer import GemmaBidirectionalLayer
from ..L3.vision_block import VisionBlock

ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh"}
TOGETHER = 8  # observations of one launch: of three cameras 120 MB of keys and values
MOST_STEPS = 1000
MOST_SEED = 2**63 - 1
Caches = list[tuple[Tensor, Tensor]]  # keys, rotated, and values [B R, J, K] of each layer, R places of a row


class PI0ForConditionalGeneration(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        vlm, dit = reader.section("vlm_config"), reader.section("dit_config")
        text, vision = vlm.section("text_config"), vlm.section("vision_config")
        block, layer, expert = block_arguments(vision), layer_arguments(text), layer_arguments(dit)
        require_alike(text, dit)
        hidden_size, expert_size = layer["hidden_size"], expert["hidden_size"]
        depth = text.integer("num_hidden_layers")
        self.cache_shape = layer["num_kv_heads"], layer["head_dim"]
        self.vocab_size, self.max_position = text.integer("vocab_size"), layer["max_position"]
        self.image_size, self.num_channels = vision.integer("image_size"), vision.integer("num_channels")
        self.chunk_size, self.num_steps = reader.integer("chunk_size"), reader.integer("num_inference_steps")
        self.state_dim, self.action_dim = reader.integer("max_state_dim"), reader.integer("max_action_dim")
        patch_size = vision.integer("patch_size")
        if self.image_size % patch_size:
            raise vision.error("image_size", f"{self.image_size} is no multiple of patch_size, {patch_size}")
        self.image_tokens = (self.image_size // patch_size) ** 2

        vision_size = block["hidden_size"]
        self.patches = LearntPatchEmbed(self.num_channels, patch_size, vision_size, self.image_tokens)
        blocks = vision.integer("num_hidden_layers")
        self.vision_layers = nn.ModuleList(VisionBlock(**block) for _ in range(blocks))
        self.post_layernorm = LayerNorm(vision_size, block["layer_norm_eps"])
        self.projector = Linear(vision_size, hidden_size, bias=True)

        self.embed_tokens = ScaledEmbedding(self.vocab_size, hidden_size, hidden_size**0.5)
        self.layers = nn.ModuleList(GemmaBidirectionalLayer(**layer) for _ in range(depth))

        self.state_proj = Linear(self.state_dim, expert_size, bias=True)
        periods = reader.number("min_period"), reader.number("max_period")
        self.time_features = FlowTimesteps(expert_size, *periods)
        self.actions = ActionTimeEmbedding(self.action_dim, expert_size)
        self.expert_layers = nn.ModuleList(GemmaBidirectionalLayer(**expert) for _ in range(depth))
        self.norm = GemmaRMSNorm(expert_size, expert["rms_norm_eps"])
        self.action_out_proj = Linear(expert_size, self.action_dim, bias=True)
        self.weight_map = weight_map(block, layer, expert)

    def forward(
        self, state: Tensor, noise: Tensor, timestep: Tensor, input_ids: Tensor, pixel_values: Tensor
    ) -> Tensor:
        """state [B, S], noise [B, A, X], timestep float32 [B] within 0 .. 1, input_ids int64 [B, N],
        pixel_values [B, C, Y, X, 3] within -1 .. 1 -> velocity [B, A, X]"""
        caches = self.observe(state, input_ids, pixel_values)
        return self.velocity(noise, self.time_features(timestep), caches)

    def sample_actions(
        self, state: Tensor, input_ids: Tensor, pixel_values: Tensor, noise: Tensor, num_steps: int
    ) -> Tensor:
        """state [B, S] and noise [B, A, X] float32, input_ids int64 [B, N], pixel_values uint8
        [B, C, Y, X, 3] -> actions float32 [B, A, X]"""
        dtype = self.norm.weight.dtype
        caches = self.observe(state.to(dtype), input_ids, (pixel_values.float() / 127.5 - 1).to(dtype))
        done_N = torch.arange(num_steps, dtype=torch.float64, device=noise.device)
        features_ND = self.time_features((1 - done_N / num_steps).float())
        for features_D in features_ND:
            velocity = self.velocity(noise.to(dtype), features_D.expand(len(noise), -1), caches)
            noise = noise - velocity.float() / num_steps
        return noise

    def observe(self, state: Tensor, input_ids: Tensor, pixel_values: Tensor) -> Caches:
        """What the actions see: keys and values of the prefix and of the state, with room for the actions."""
        features_INM = self.see(pixel_values.flatten(0, 1))
        features_BFM = features_INM.unflatten(0, pixel_values.shape[:2]).flatten(1, 2)
        places = features_BFM.shape[1] + input_ids.shape[1] + 1 + self.chunk_size
        caches = self.caches(len(state) * places, state)
        self.read(features_BFM, input_ids, caches)
        self.sense(state, caches)
        return caches

    def see(self, pixel_values: Tensor) -> Tensor:
        """images [I, Y, X, 3] -> their tokens [I, T, D]"""
        hidden_ITH = self.patches(pixel_values)
        (images, length), device = hidden_ITH.shape[:2], hidden_ITH.device
        starts_I1 = torch.arange(0, (images + 1) * length, length, dtype=torch.int32, device=device)
        hidden_TH = hidden_ITH.flatten(0, 1)
        for layer in self.vision_layers:
            hidden_TH = layer(hidden_TH, starts_I1, length)
        return self.projector(self.post_layernorm(hidden_TH)).unflatten(0, (images, length))

    def read(self, features: Tensor, input_ids: Tensor, caches: Caches) -> None:
        """features [B, F, D], input_ids int64 [B, N]: the prefix, from the first place of each row on"""
        text_BND = self.embed_tokens(input_ids.flatten()).unflatten(0, input_ids.shape)
        self.attend(self.layers, torch.cat((features, text_BND), dim=1), caches, first=0)

    def sense(self, state: Tensor, caches: Caches) -> None:
        """state [B, S], at the last place before the actions"""
        first = len(caches[0][0]) // len(state) - self.chunk_size - 1
        self.attend(self.expert_layers, self.state_proj(state)[:, None], caches, first)

    def velocity(self, noise: Tensor, time_embeds: Tensor, caches: Caches) -> Tensor:
        """noise [B, A, X], time_embeds float32 [B, M] -> [B, A, X]"""
        first = len(caches[0][0]) // len(noise) - self.chunk_size
        hidden, residual = self.attend(self.expert_layers, self.actions(noise, time_embeds), caches, first)
        last_TM, _ = self.norm(hidden, residual)
        return self.action_out_proj(last_TM).unflatten(0, noise.shape[:2])

    def attend(
        self, layers: nn.ModuleList, tokens: Tensor, caches: Caches, first: int
    ) -> tuple[Tensor, Tensor]:
        """tokens [B, L, M], at the places of each row from `first` on: they see those up to their own last,
        and leave their keys and values there -> hidden states and residual [B L, M]"""
        (rows, length), device = tokens.shape[:2], tokens.device
        room, seen = len(caches[0][0]) // rows, first + length
        place_L = torch.arange(first, seen, device=device)
        slots_T = (torch.arange(rows, device=device)[:, None] * room + place_L).flatten()
        if seen == room:
            edge_B1 = torch.arange(rows + 1, dtype=torch.int32, device=device)
            query_starts, key_starts = edge_B1 * length, edge_B1 * room
        else:  # what is between the places of a row and the next one is a row of keys without queries
            edge_2B = torch.arange(2 * rows, dtype=torch.int32, device=device)
            query_starts = (edge_2B + 1) // 2 * length
            key_starts = edge_2B // 2 * room + edge_2B % 2 * seen
        extent = (slots_T, query_starts, key_starts, length, seen)
        end, positions_T = (rows - 1) * room + seen, place_L.repeat(rows)
        hidden, residual = tokens.flatten(0, 1), None
        for layer, (keys, values) in zip(layers, caches, strict=True):
            hidden, residual = layer(positions_T, hidden, residual, keys[:end], values[:end], *extent)
        assert residual is not None
        return hidden, residual

    def caches(self, places: int, like: Tensor) -> Caches:
        """For so many places in all rows, not filled; of the dtype and on the device of `like`."""
        return [
            (like.new_empty(places, *self.cache_shape), like.new_empty(places, *self.cache_shape))
            for _ in self.layers
        ]

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a velocity after an observation calls (rows are prefixes, images those of all rows), or
        images, prefixes or states alone, or the actions of a denoising step, behind what they see."""
        rows, (places,) = len(batch.seq_lens), set(batch.seq_lens)
        state_BS = torch.empty(rows, self.state_dim)
        noise_BAX = torch.empty(rows, self.chunk_size, self.action_dim)
        sides = (self.image_size, self.image_size, self.num_channels)
        if run == "forward":
            assert batch.images is not None
            cameras = batch.images[0] // rows
            ids_BN = torch.empty(rows, places - cameras * self.image_tokens, dtype=torch.int64)
            timestep_B = torch.empty(rows, dtype=torch.float32)
            yield run, (state_BS, noise_BAX, timestep_B, ids_BN, torch.empty(rows, cameras, *sides))
        elif run == "see":
            yield run, (torch.empty(rows, *sides),)
        elif run == "read":
            cameras = (places - 1) // self.image_tokens
            text = places - cameras * self.image_tokens
            features = torch.empty(rows, places - text, self.embed_tokens.weight.shape[1])
            ids_BN = torch.empty(rows, text, dtype=torch.int64)
            yield run, (features, ids_BN, self.caches(rows * places, state_BS))
        else:
            features_BM = yield "time_features", (torch.empty(rows, dtype=torch.float32),)
            yield run, (noise_BAX, features_BM, self.caches(rows * places, state_BS))

    def stages(self) -> dict[str, Stage]:
        return {"sample_actions": Stage(most=TOGETHER)}

    def program(
        self,
        state: Tensor,
        input_ids: Tensor,
        pixel_values: Tensor,
        noise: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pixel_attention_mask: Tensor | None = None,
        num_steps: int | None = None,
        seed: int = 0,
    ) -> Program:
        """state: floats [up to S], the rest is zero; input_ids: integers [N], the prompt with its first and
        last token; pixel_values: uint8 [C, Y, X, 3], images padded to squares of the model's size; noise:
        floats [A, X], without it drawn by the seed. Masks [N] and [C]: what is there -> actions float32
        [A, X]"""
        steps = self.num_steps if num_steps is None else num_steps
        require_number("num_steps", steps, 1, MOST_STEPS, whole=True)
        require_number("seed", seed, 0, MOST_SEED, whole=True)
        state_S = torch.zeros(self.state_dim)
        given = floats("state", state, 1, f"a vector of 1 to {self.state_dim} floats")
        if not 0 < len(given) <= self.state_dim:
            raise RequestError(f"state has {len(given)} values: the model takes 1 to {self.state_dim}")
        state_S[: len(given)] = given
        form = (self.chunk_size, self.action_dim)
        if noise is None:
            noise_AX = torch.randn(form, generator=torch.Generator().manual_seed(seed))
        elif (noise_AX := floats("noise", noise, 2, f"floats {list(form)}")).shape != form:
            raise RequestError(f"noise has the shape {list(noise_AX.shape)}: the model takes {list(form)}")
        ids_N = self.prompt(kept("input_ids", input_ids, 1, "attention_mask", attention_mask))
        images = kept("pixel_values", pixel_values, 4, "pixel_attention_mask", pixel_attention_mask)
        sides = (self.image_size, self.image_size, self.num_channels)
        if images.dtype != torch.uint8 or images.shape[1:] != sides:
            raise RequestError(
                f"pixel_values must be uint8 [cameras, {', '.join(map(str, sides))}], "
                f"not {described(images)}: resize and pad them"
            )
        places = len(images) * self.image_tokens + len(ids_N) + 1 + self.chunk_size
        if places > self.max_position:
            raise RequestError(
                f"{len(images)} cameras, {len(ids_N)} tokens of a prompt, state and actions are {places} "
                f"places: the model has {self.max_position}"
            )
        return {"actions": (yield Call("sample_actions", state_S, ids_N, images, noise_AX, steps))}

    def prompt(self, ids_N: Tensor) -> Tensor:
        """int64 on the host; RequestError for what is no token."""
        if ids_N.dtype not in (torch.int32, torch.int64):
            raise RequestError(f"input_ids must be integers [tokens], not {described(ids_N)}")
        low, high = (int(end) for end in ids_N.aminmax())
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise RequestError(
                f"input_ids has {wrong}: tokens are 0 .. {self.vocab_size - 1}, without "
                "placeholders of images"
            )
        return ids_N.cpu().long()


def floats(name: str, given: Any, dims: int, wanted: str) -> Tensor:
    """float32 on the host; RequestError for anything but finite floats of so many dimensions."""
    if not isinstance(given, Tensor) or not given.is_floating_point() or given.dim() != dims:
        raise RequestError(f"{name} must be {wanted}, not {described(given)}")
    if not bool(given.isfinite().all()):
        raise RequestError(f"{name} has values that are not finite")
    return given.float().cpu()


def kept(name: str, given: Any, dims: int, mask_name: str, mask: Any) -> Tensor:
    """What of a tensor's first dimension its mask keeps, at least one entry; RequestError otherwise."""
    if not isinstance(given, Tensor) or given.dim() != dims:
        raise RequestError(f"{name} must have {dims} dimensions, not {described(given)}")
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.shape != given.shape[:1] or mask.is_floating_point():
            raise RequestError(f"{mask_name} must be booleans [{len(given)}], not {described(mask)}")
        given = given[mask.to(given.device).bool()]
    if not len(given):
        raise RequestError(f"{name} is empty, or all of it is masked: the model needs one at least")
    return given


def block_arguments(vision: ConfigReader) -> dict[str, Any]:
    """What every block of the images' tower is made with; a UsageError names the key that is wrong."""
    vision.choice("model_type", {"siglip_vision_model": None})
    vision.refuse(["vision_use_head"])
    hidden_size, num_heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise vision.error("hidden_size", f"{hidden_size} is no multiple of num_attention_heads, {num_heads}")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": vision.integer("intermediate_size"),
        "num_heads": num_heads,
        "hidden_act": vision.choice("hidden_act", ACTIVATIONS),
        "layer_norm_eps": vision.number("layer_norm_eps"),
    }


def layer_arguments(gemma: ConfigReader) -> dict[str, Any]:
    """What every layer of the language model, or of the expert, is made with."""
    gemma.choice("model_type", {"gemma": None})
    gemma.refuse(["attention_bias"])
    num_heads, num_kv_heads = gemma.integer("num_attention_heads"), gemma.integer("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise gemma.error("num_key_value_heads", f"{num_kv_heads} does not divide {num_heads} heads")
    max_position = gemma.integer("max_position_embeddings")
    return {
        "hidden_size": gemma.integer("hidden_size"),
        "intermediate_size": gemma.integer("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": gemma.integer("head_dim"),
        "max_position": max_position,
        "rope_parameters": rope_parameters(gemma, max_position),
        "rms_norm_eps": gemma.number("rms_norm_eps"),
        "hidden_act": gemma.choice("hidden_act", ACTIVATIONS),
    }


def require_alike(text: ConfigReader, dit: ConfigReader) -> None:
    """UsageError unless the expert can see the keys and values of the language model."""
    for key in ("num_hidden_layers", "num_key_value_heads", "head_dim"):
        if (own := dit.integer(key)) != (wanted := text.integer(key)):
            raise dit.error(key, f"{own}: the language model's keys, which the expert sees, have {wanted}")


def weight_map(block: dict[str, Any], layer: dict[str, Any], expert: dict[str, Any]) -> WeightMap:
    """Names of transformers' file, and of openpi's: there the embedding is stored as the head alone. What the
    expert embeds and the language model's last norm are not used."""
    tower, inside = "model.vlm.vision_tower", "model.vlm.vision_tower.encoder.layers.*"
    names = {
        f"{tower}.embeddings.position_embedding.weight": "patches.position_embedding",
        f"{tower}.embeddings.patch_embedding.*": "patches.*",
        f"{tower}.post_layernorm.*": "post_layernorm.*",
        f"{inside}.layer_norm1.*": "vision_layers.*.layer_norm1.*",
        f"{inside}.layer_norm2.*": "vision_layers.*.layer_norm2.*",
        f"{inside}.self_attn.out_proj.*": "vision_layers.*.self_attn.out_proj.linear.*",
        f"{inside}.mlp.fc1.*": "vision_layers.*.mlp.fc1.linear.*",
        f"{inside}.mlp.fc2.*": "vision_layers.*.mlp.fc2.linear.*",
        "model.vlm.multi_modal_projector.linear.*": "projector.*",
        "model.vlm.language_model.embed_tokens.weight": "embed_tokens.weight",
        "model.dit.norm.weight": "norm.weight",
        "action_out_proj.*": "action_out_proj.*",
    }
    packed = {
        "vision_layers.*.self_attn.qkv_proj.linear.*": {
            f"{inside}.self_attn.{name}_proj.*": block["hidden_size"] for name in ("q", "k", "v")
        }
    }
    embedding = {
        "state_proj.*": "state_proj.*",
        **{
            f"{name}.*": f"actions.{name}.*"
            for name in ("action_in_proj", "action_time_mlp_in", "action_time_mlp_out")
        },
    }
    openpi = "paligemma_with_expert"
    mapped = WeightMap(
        names | {f"embed_action_time.{name}": ours for name, ours in embedding.items()},
        packed,
        ignored=(
            "model.dit.embed_tokens.weight",
            "model.vlm.language_model.norm.weight",
            f"{openpi}.gemma_expert.lm_head.weight",
        ),
        prefixes={
            "model.vlm.": f"{openpi}.paligemma.model.",
            "model.vlm.vision_tower.": f"{openpi}.paligemma.model.vision_tower.vision_model.",
            "model.dit.": f"{openpi}.gemma_expert.model.",
            "embed_action_time.": "",
        },
        spellings={f"{openpi}.paligemma.lm_head.weight": "embed_tokens.weight"},
    )
    for theirs, ours, made in (
        ("model.vlm.language_model.layers.*", "layers.*", layer),
        ("model.dit.layers.*", "expert_layers.*", expert),
    ):
        norms = ("input_layernorm", "post_attention_layernorm")
        rows = {
            part: made["head_dim"] * made[heads]
            for part, heads in (("q", "num_heads"), ("k", "num_kv_heads"), ("v", "num_kv_heads"))
        }
        mapped |= gated_mlp_weights(made["intermediate_size"], f"{theirs}.mlp", f"{ours}.mlp")
        mapped |= WeightMap(
            {f"{theirs}.{norm}.weight": f"{ours}.{norm}.weight" for norm in norms}
            | {f"{theirs}.self_attn.o_proj.weight": f"{ours}.self_attn.o_proj.linear.weight"},
            {
                f"{ours}.self_attn.qkv_proj.linear.weight": {
                    f"{theirs}.self_attn.{part}_proj.weight": count for part, count in rows.items()
                }
            },
        )
    return mapped
