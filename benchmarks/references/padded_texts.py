"""Text encoders as the usual libraries run them: by transformers, with SDPA attention under a mask, each text
padded to the longest of its batch.

`default` pads a whole batch of the workload; `sorted` does what the libraries' `encode` does with a list:
sorts it by length and cuts it into batches of 32. `compiled` ones are captured too. What was computed for
padding stays in the outputs, and those of a batch may be overwritten by the next, which is kind to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Machine
from references.programs import requests

SORTED_BATCH = 32  # FlagEmbedding's and sentence-transformers' default, or near it


class PaddedTexts(ABC):
    settings: ClassVar[tuple[str, ...]] = ("default", "sorted", "compiled", "compiled-sorted")
    pad_id: ClassVar[int]

    def __init__(self, machine: Machine) -> None:
        import transformers

        self._machine, self.version = machine, transformers.__version__
        self._model = self.made(machine)

    @abstractmethod
    def made(self, machine: Machine) -> Any:
        """The encoder with its heads: called with input_ids and attention_mask [B, S]."""

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        from fastkernels.nn.batching import sent

        torch.compiler.reset()
        torch._dynamo.config.recompile_limit = 64  # batches of many lengths, each a graph of its own
        model, device = self._model, torch.device(self._machine.device)
        if setting.startswith("compiled"):
            model = torch.compile(model, mode="reduce-overhead", dynamic=False)
        texts = [request["input_ids"] for request in requests(workload, self._machine)]
        size = SORTED_BATCH if setting.endswith("sorted") else len(texts)

        @torch.inference_mode()
        def run() -> int:
            made = 0
            given = sorted(texts, key=len, reverse=True) if setting.endswith("sorted") else texts
            for begin in range(0, len(given), size):
                batch = given[begin : begin + size]
                lengths_B = torch.tensor([len(ids) for ids in batch])
                ids_BS = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=self.pad_id)
                mask_BS = (torch.arange(ids_BS.shape[1]) < lengths_B[:, None]).long()
                torch.compiler.cudagraph_mark_step_begin()
                model(sent(ids_BS, device), sent(mask_BS, device))
                made += len(batch)
            return made

        return run
