"""BGE-M3 in transformers with the heads of FlagEmbedding, which have the encoder's dtype there."""

from __future__ import annotations

from functools import partial
from typing import Any

from references.base import Comparison, Machine, one_batch
from references.padded_texts import PaddedTexts
from references.programs import Ours
from references.transformers_lm import filled


class Transformers(PaddedTexts):
    pad_id = 1

    def made(self, machine: Machine) -> Any:
        import torch
        import transformers
        from torch import Tensor, nn

        fields = {key: value for key, value in machine.config.items() if key != "model_type"}
        config = transformers.XLMRobertaConfig(**fields)

        class WithHeads(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                make = partial(transformers.XLMRobertaModel._from_config, add_pooling_layer=False)
                self.encoder = filled(make, machine, config)
                self.sparse = nn.Linear(config.hidden_size, 1)
                self.colbert = nn.Linear(config.hidden_size, config.hidden_size)

            def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
                hidden_BSD = self.encoder(input_ids, attention_mask).last_hidden_state
                colbert_BSD = self.colbert(hidden_BSD[:, 1:]) * attention_mask[:, 1:, None]
                normalised = nn.functional.normalize
                sparse_BS = torch.relu(self.sparse(hidden_BSD)).squeeze(-1)
                return normalised(colbert_BSD, dim=-1), normalised(hidden_BSD[:, 0], dim=-1), sparse_BS

        return machine.filled(WithHeads)


_workloads: Any = partial(one_batch, "bge_m3")
COMPARISONS = [
    Comparison(
        "bge_m3",
        "transformers",
        Ours,
        Transformers,
        _workloads,
        bars=dict.fromkeys(("documents", "document-single", "documents-32"), 1.3),
    )
]
