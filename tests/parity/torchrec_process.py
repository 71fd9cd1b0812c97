"""A click-through model of torchrec (apart.py). FILE holds {"config", "weights", "dense", "values",
"lengths"}, ids as rows of their own tables, and then what each part makes of them; without weights the names
and shapes of the model's own, which is on the meta device."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch

warnings.filterwarnings("ignore")
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType  # noqa: E402
from torchrec.models.dlrm import DLRM, DLRM_DCN  # noqa: E402


def made(config: dict[str, Any], device: str) -> torch.nn.Module:
    at = torch.device(device)
    tables = [
        EmbeddingBagConfig(
            name=f"t{i}",
            embedding_dim=config["embedding_dim"],
            num_embeddings=rows,
            feature_names=[f"f{i}"],
            pooling=PoolingType[config["pooling"].upper()],
        )
        for i, rows in enumerate(config["num_embeddings_per_feature"])
    ]
    arguments: dict[str, Any] = {
        "embedding_bag_collection": EmbeddingBagCollection(tables=tables, device=at),
        "dense_in_features": config["dense_in_features"],
        "dense_arch_layer_sizes": config["dense_arch_layer_sizes"],
        "over_arch_layer_sizes": config["over_arch_layer_sizes"],
        "dense_device": at,
    }
    if config["interaction"] == "dot":
        return DLRM(**arguments)
    layers, rank = config["dcn_num_layers"], config["dcn_low_rank_dim"]
    return DLRM_DCN(**arguments, dcn_num_layers=layers, dcn_low_rank_dim=rank)


@torch.inference_mode()
def answered(asked: dict[str, Any]) -> dict[str, torch.Tensor]:
    model = made(asked["config"], "cpu").eval()
    model.load_state_dict(asked["weights"], strict=True)
    tables = len(asked["config"]["num_embeddings_per_feature"])
    bags = KeyedJaggedTensor.from_lengths_sync(
        keys=[f"f{i}" for i in range(tables)], values=asked["values"], lengths=asked["lengths"].flatten()
    )
    dense, sparse = model.dense_arch(asked["dense"]), model.sparse_arch(bags)
    interaction = model.inter_arch(dense_features=dense, sparse_features=sparse)
    logits = model(asked["dense"], bags)
    return {"dense": dense, "sparse": sparse, "interaction": interaction, "logits": logits}


def main(path: Path) -> None:
    asked = torch.load(path)
    if "weights" in asked:
        torch.save(answered(asked), path)
        return
    state = made(asked["config"], "meta").state_dict()
    torch.save({name: list(tensor.shape) for name, tensor in state.items()}, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
