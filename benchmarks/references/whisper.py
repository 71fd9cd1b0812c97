"""Whisper in transformers: `generate` behind the decoder's prompt, exact lengths, no rules of decoding on
either side; with a cache that grows, and with a static one, where it compiles the decode step.

Its encoder is compared alone too, from log-mel features to states on both sides. With clips, our front end is
inside our times; its own works on the host and is left out of its times, which is kind to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from fastkernels import registry
from fastkernels.records import Size
from fastkernels.registry.workloads import TokenWorkload
from references import language
from references.base import Comparison, Machine
from references.transformers_lm import filled

SEED, SAMPLING_RATE, SECONDS = 20, 16_000, {"full": 10, "tiny": 1}
OUTPUT_LEN = {"full": 200, "tiny": 16}
CLIPS, ENCODED = 32, 16  # of the larger workloads


@dataclass(frozen=True)
class Encoding:
    """Log-mel features to states, nothing else."""

    requests: int


def workloads(size: Size) -> dict[str, TokenWorkload | Encoding]:
    shape = {"kind": "latency", "size": size, "output_len": OUTPUT_LEN[size]}
    clips = {"single-clip": 1, f"fixed-clips-{CLIPS}": CLIPS}
    return {
        **{name: TokenWorkload(name=name, requests=count, **shape) for name, count in clips.items()},
        **{f"encoder-{count}": Encoding(count) for count in (1, ENCODED)},
    }


def _prompt(machine: Machine) -> list[int]:
    correctness = registry.architecture(machine.architecture).correctness
    assert correctness.kind == "tokens"
    return list(correctness.prompt[machine.size])


def _features(workload: TokenWorkload | Encoding, machine: Machine) -> Any:
    """[B, M, 2 S] on the device, in the model's dtype."""
    import torch

    config = machine.config
    shape = (workload.requests, config["num_mel_bins"], 2 * config["max_source_positions"])
    features = torch.randn(shape, generator=torch.Generator().manual_seed(SEED))
    return features.to(machine.device, getattr(torch, machine.dtype))


class Ours(language.Ours):
    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, max_num_seqs=CLIPS)
        self._prompt, self._machine, self._device = _prompt(machine), machine, machine.device

    def prepare(self, workload: TokenWorkload | Encoding, setting: str) -> Callable[[], int]:
        import torch

        if isinstance(workload, Encoding):
            return self._encoding(workload)
        generator = torch.Generator().manual_seed(SEED)
        samples = round(SECONDS[workload.size] * SAMPLING_RATE)
        clips = torch.randn(workload.requests, samples, generator=generator) * 0.2
        prompts = [{"prompt_token_ids": self._prompt, "multi_modal_data": {"audio": clip}} for clip in clips]
        return lambda: language.count(self.generate(prompts, workload.output_len))

    def _encoding(self, workload: Encoding) -> Callable[[], int]:
        """The encoder in graphs of calls, as the engine has it behind its front end."""
        import torch

        from fastkernels.engine.programs.call_graphs import CallGraphs
        from fastkernels.nn.context import use_step

        encoder = self.llm.model.encoder

        def states(features_BMF: Any) -> Any:
            with use_step(None):
                return encoder.states(features_BMF)

        encode = CallGraphs(states, torch.device(self._device))
        features_BMF = _features(workload, self._machine)
        return torch.inference_mode()(lambda: len(encode(features_BMF)))


class Transformers:
    settings: ClassVar[tuple[str, ...]] = ("default", "static")

    def __init__(self, machine: Machine) -> None:
        import transformers

        config = transformers.WhisperConfig(**machine.config)
        make = transformers.WhisperForConditionalGeneration._from_config
        self._model = filled(make, machine, config)
        self._machine, self._prompt = machine, _prompt(machine)
        self.version = transformers.__version__

    def prepare(self, workload: TokenWorkload | Encoding, setting: str) -> Callable[[], int]:
        import torch
        from transformers import GenerationMixin

        torch.compiler.reset()
        device, features = self._machine.device, _features(workload, self._machine)
        if isinstance(workload, Encoding):
            encoder = self._model.model.encoder
            if setting == "static":  # its shapes are static already: it is compiled
                encoder = torch.compile(encoder, mode="reduce-overhead")
            return torch.inference_mode()(lambda: len(encoder(features).last_hidden_state))
        ids_BT = torch.tensor([self._prompt] * workload.requests, device=device)
        options = {} if setting == "default" else {"cache_implementation": "static"}

        def run() -> int:
            # Past its own wrapper, whose rules cut, repeat and retry.
            out_BT = GenerationMixin.generate(
                self._model,
                features,
                decoder_input_ids=ids_BT,
                max_new_tokens=workload.output_len,
                do_sample=False,
                eos_token_id=None,
                suppress_tokens=None,
                begin_suppress_tokens=None,
                **options,
            )
            return out_BT[:, ids_BT.shape[1] :].numel()

        return run


COMPARISONS = [
    Comparison(
        "whisper",
        "transformers",
        Ours,
        Transformers,
        workloads,
        bars={"single-clip": 1.5, f"fixed-clips-{CLIPS}": 1.5, "encoder-1": 1.1, f"encoder-{ENCODED}": 1.1},
        default_bars={"single-clip": 4.0, f"fixed-clips-{CLIPS}": 4.0},
    )
]
