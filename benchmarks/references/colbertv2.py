"""ColBERTv2 in transformers with the projection of colbert-ai, which has the encoder's dtype there."""

from __future__ import annotations

from functools import partial
from typing import Any

from references.base import Comparison, Machine, one_batch
from references.padded_texts import PaddedTexts
from references.programs import Ours
from references.transformers_lm import filled


class Transformers(PaddedTexts):
    pad_id = 0

    def made(self, machine: Machine) -> Any:
        import transformers
        from torch import Tensor, nn

        fields = machine.config
        dim = fields.pop("dim")
        config = transformers.BertConfig(**{key: fields[key] for key in fields if key != "model_type"})

        class WithProjection(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                make = partial(transformers.BertModel._from_config, add_pooling_layer=False)
                self.encoder = filled(make, machine, config)
                self.linear = nn.Linear(config.hidden_size, dim, bias=False)

            def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
                hidden_BSD = self.encoder(input_ids, attention_mask).last_hidden_state
                embeddings_BSK = self.linear(hidden_BSD) * attention_mask[..., None]
                return nn.functional.normalize(embeddings_BSK.float(), dim=-1)

        return machine.filled(WithProjection)


_workloads: Any = partial(one_batch, "colbertv2")
COMPARISONS = [
    Comparison(
        "colbertv2",
        "transformers",
        Ours,
        Transformers,
        _workloads,
        bars=dict.fromkeys(("passages", "passage-single", "passages-32"), 3.1),
    )
]
