"""LLaDA as it is published: a loop around the network, which is transformers' Llama without its mask.

Prompts are padded on the left, as the published loop does, and each step fills the most confident masks of
the block, as many as in ours. `default` runs the network on all tokens in every step; `compiled` also
compiles and captures it; the `dual` ones run the later steps of a block on its own tokens beside cached keys
and values, as Fast-dLLM does. All compute the head on the block alone, which the published loops do not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, requests
from references.transformers_lm import filled

BAR = 2.0


class Transformers:
    settings: ClassVar[tuple[str, ...]] = ("default", "dual", "compiled", "compiled-dual")

    def __init__(self, machine: Machine) -> None:
        import transformers

        ours = machine.config
        config = transformers.LlamaConfig(
            vocab_size=ours["vocab_size"],
            hidden_size=ours["d_model"],
            intermediate_size=ours["mlp_hidden_size"],
            num_hidden_layers=ours["n_layers"],
            num_attention_heads=ours["n_heads"],
            num_key_value_heads=ours["n_kv_heads"],
            rms_norm_eps=ours["rms_norm_eps"],
            max_position_embeddings=ours["max_sequence_length"],
            tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": ours["rope_theta"]},
        )
        self._model = filled(transformers.LlamaForCausalLM._from_config, machine, config)
        self._machine, self.version = machine, transformers.__version__
        self._mask_id, self._pad_id = ours["mask_token_id"], ours["pad_token_id"]

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        torch._dynamo.config.recompile_limit = 64
        drawn, device = requests(workload, self._machine), self._machine.device
        prompts = [request["input_ids"] for request in drawn]
        gen_length, length, steps = (drawn[0][name] for name in ("gen_length", "block_length", "steps"))
        of_block = steps * length // gen_length
        longest = max(map(len, prompts))
        pad, end = torch.nn.functional.pad, (0, gen_length)
        rows = [pad(ids, (longest - len(ids), 0), value=self._pad_id) for ids in prompts]
        padded = pad(torch.stack(rows), end, value=self._mask_id)
        network = _network(self._model, setting.endswith("dual"), padded.shape)
        call = network
        if setting.startswith("compiled"):
            call = torch.compile(network, mode="reduce-overhead", dynamic=False)

        @torch.inference_mode()
        def run() -> int:
            x = padded.to(device)
            for begin in range(longest, longest + gen_length, length):
                block = torch.arange(begin, begin + length, device=device)
                for step in range(of_block):
                    torch.compiler.cudagraph_mark_step_begin()
                    is_whole = step == 0 or not network.is_cached
                    logits = call(x, block, is_whole)
                    probability, best = logits.double().softmax(-1).max(-1)
                    is_mask = x[:, begin : begin + length] == self._mask_id
                    probability = probability.masked_fill(~is_mask, -torch.inf)
                    count = length // of_block + (step < length % of_block)
                    at = probability.topk(count, dim=-1).indices
                    x[:, begin : begin + length].scatter_(1, at, best.gather(1, at))
            return len(x)

        return run


def _network(model: Any, is_cached: bool, shape: Any) -> Any:
    """A module: ids [B, T], places of a block [L], whether all tokens are read -> logits [B, L, V]."""
    import torch

    config = model.config
    heads, head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads

    class Cache:
        """What the network writes keys and values to, at the places of its last call."""

        def __init__(self) -> None:
            form = (shape[0], heads, shape[1], head_size)
            weight = model.lm_head.weight
            self.pairs = [
                (weight.new_zeros(form), weight.new_zeros(form)) for _ in range(config.num_hidden_layers)
            ]
            for pool in (pool for pair in self.pairs for pool in pair):
                torch._dynamo.mark_static_address(pool)  # written in place, and captured all the same
            self.at: Any = None

        def update(self, key: Any, value: Any, layer: int, *_: Any, **__: Any) -> Any:
            for pool, new in zip(self.pairs[layer], (key, value)):
                pool.index_copy_(2, self.at, new)
            return self.pairs[layer]

        def get_seq_length(self, *_: Any) -> int:
            return 0

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.is_cached = model, is_cached
            self.cache = Cache() if is_cached else None
            self.places = torch.arange(shape[1], device=model.device)

        def forward(self, x: Any, block: Any, is_whole: bool) -> Any:
            places = self.places if is_whole else block
            hidden = self.model.model.embed_tokens(x if is_whole else x.index_select(1, block))
            turned = self.model.model.rotary_emb(hidden, places[None])
            if self.cache is not None:
                self.cache.at = places
            for layer in self.model.model.layers:
                layer.self_attn.is_causal = False
                hidden = layer(hidden, position_embeddings=turned, past_key_values=self.cache)
            hidden = self.model.model.norm(hidden)
            return self.model.lm_head(hidden.index_select(1, block) if is_whole else hidden)

    return Network()


_workloads: Any = partial(one_batch, "llada")
COMPARISONS = [
    Comparison(
        "llada",
        "transformers",
        Ours,
        Transformers,
        _workloads,
        bars=dict.fromkeys(("fill-batch", "fill-single"), BAR),
    )
]
