"""DLRM in torchrec, and the same model in plain PyTorch where torchrec cannot be installed.

torchrec needs fbgemm_gpu, whose wheels fit one version of PyTorch and CUDA each. Its settings: as a user gets
it (a lookup for each table); compiled, with CUDA graphs; captured, the first setting in a CUDA graph; and
that with FBGEMM's table-batched lookup. The second reference, `torch`, is no library's: an nn.EmbeddingBag
for each table and nn.Linear layers, as a user would write it, eager and compiled.

Both sides begin with ids and lengths on the host and end with logits on the device. `ctr-` workloads have the
scored configuration, `mlperf-` ones the cross net on MLPerf's shapes.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from fastkernels import registry
from fastkernels.records import Size
from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch

SEED = 20
CONFIGS: dict[Size, dict[str, str]] = {
    "full": {"ctr": "census", "mlperf": "mlperf-1m"},
    "tiny": {"ctr": "tiny", "mlperf": "tiny-dcn"},
}


@dataclass(frozen=True)
class Asked:
    config: str
    workload: ProgramWorkload


def workloads(size: Size) -> dict[str, Asked]:
    shapes = {name.removeprefix("ctr"): one for name, one in one_batch("dlrmv2", size).items()}
    return {
        prefix + name: Asked(config, one)
        for prefix, config in CONFIGS[size].items()
        for name, one in shapes.items()
    }


def config_of(name: str) -> dict[str, Any]:
    return registry.architecture("dlrmv2").configs[name].config


def request(asked: Asked) -> dict[str, Any]:
    """Tensors on the host."""
    from fastkernels.engine.media.arrays import value_of
    from fastkernels.runner.models.draws import Requests

    correctness = registry.architecture("dlrmv2").correctness
    assert correctness.kind == "program"
    drawn = Requests(correctness.inputs, config_of(asked.config), random.Random(SEED))
    (one,) = drawn.of(asked.workload.shapes, 1)
    return {name: value_of(value) for name, value in one.items()}


class Ours:
    settings: ClassVar[tuple[str, ...]] = ("engine",)

    def __init__(self, machine: Machine) -> None:
        from fastkernels import Model, __version__

        self.version = __version__
        made = {"device": machine.device, "size": machine.size, "dtype": machine.dtype}
        self._model = lru_cache(lambda config: Model("dlrmv2", config=config, **made))

    def prepare(self, asked: Asked, setting: str) -> Callable[[], int]:
        model, one = self._model(asked.config), request(asked)
        return lambda: len(model.run([one])[0]["logits"])


class Theirs(ABC):
    """What both references share: inputs cross to the device as our engine sends them."""

    def __init__(self, machine: Machine) -> None:
        import torch

        self._machine, self._device = machine, torch.device(machine.device)
        self._filled = lru_cache(self._with_weights)

    @abstractmethod
    def made(self, config: dict[str, Any], is_fused: bool) -> Any:
        """The model without weights."""

    def _with_weights(self, config: str, is_fused: bool) -> Any:
        return self._machine.filled(lambda: self.made(config_of(config), is_fused))

    @abstractmethod
    def bags(self, values: Any, lengths: Any, counts: list[int]) -> Any:
        """What its forward takes beside the dense features; counts: of each table's ids."""

    def prepare(self, asked: Asked, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        model = self._filled(asked.config, setting.startswith("fused"))
        one = request(asked)
        counts = one["lengths"].sum(1).tolist()
        host = [one["dense"].to(getattr(torch, self._machine.dtype)), one["values"], one["lengths"].flatten()]
        call: Callable[..., Any] = lambda dense, *bags: model(dense, self.bags(*bags, counts))
        if setting == "compiled":
            call = torch.compile(call, mode="reduce-overhead")
        elif setting.endswith("captured"):
            call = self._captured(call, host)
        return torch.inference_mode()(lambda: len(call(*self._sent(host))))

    def _sent(self, host: list[Any]) -> list[Any]:
        from fastkernels.nn.batching import sent

        return [sent(tensor, self._device) for tensor in host]

    def _captured(self, call: Callable[..., Any], host: list[Any]) -> Callable[..., Any]:
        import torch

        if self._machine.device != "cuda":
            raise RuntimeError("CUDA graphs need a GPU")
        static, graph = self._sent(host), torch.cuda.CUDAGraph()
        with torch.inference_mode():
            for _ in range(3):
                call(*static)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                result = call(*static)

        def replayed(*given: Any) -> Any:
            for old, new in zip(static, given, strict=True):
                old.copy_(new, non_blocking=True)
            graph.replay()
            return result.clone()

        return replayed


class Torchrec(Theirs):
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled", "captured", "fused-captured")

    def __init__(self, machine: Machine) -> None:
        import torchrec

        super().__init__(machine)
        self.version = torchrec.__version__

    def made(self, config: dict[str, Any], is_fused: bool) -> Any:
        import torch
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType
        from torchrec.models.dlrm import DLRM, DLRM_DCN
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

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
        if is_fused:
            sgd = {"optimizer_type": torch.optim.SGD, "optimizer_kwargs": {"lr": 0.0}}
            bags = FusedEmbeddingBagCollection(tables=tables, **sgd, device=self._device)
        else:
            bags = EmbeddingBagCollection(tables=tables, device=self._device)
        layers = [config[f"{part}_arch_layer_sizes"] for part in ("dense", "over")]
        arguments = (bags, config["dense_in_features"], *layers)
        if config["interaction"] == "dot":
            return DLRM(*arguments, dense_device=self._device)
        cross = (config["dcn_num_layers"], config["dcn_low_rank_dim"])
        return DLRM_DCN(*arguments, *cross, dense_device=self._device)

    def bags(self, values: Any, lengths: Any, counts: list[int]) -> Any:
        """The counts spare it to read them on the host."""
        from torchrec import KeyedJaggedTensor

        keys = [f"f{i}" for i in range(len(counts))]
        return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, length_per_key=counts)


class Plain(Theirs):
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled", "captured")

    def __init__(self, machine: Machine) -> None:
        import torch

        super().__init__(machine)
        self.version = torch.__version__

    def made(self, config: dict[str, Any], is_fused: bool) -> Any:
        return plain(config)

    def bags(self, values: Any, lengths: Any, counts: list[int]) -> Any:
        """Ids and offsets of each table."""
        import torch

        ends = lengths.view(len(counts), -1).cumsum(1)
        offsets = torch.nn.functional.pad(ends, (1, 0))
        return list(zip(values.split(counts), offsets))


def plain(config: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    def layers(inputs: int, sizes: list[int], activates_last: bool) -> nn.Sequential:
        pairs = [(nn.Linear(i, o), nn.ReLU()) for i, o in zip([inputs, *sizes], sizes)]
        parts = [part for pair in pairs for part in pair]
        return nn.Sequential(*(parts if activates_last else parts[:-1]))

    class PlainDLRM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            dim, pooling = config["embedding_dim"], config["pooling"]
            rows = config["num_embeddings_per_feature"]
            self.embedding_bags = nn.ModuleList(
                nn.EmbeddingBag(count, dim, mode=pooling, include_last_offset=True) for count in rows
            )
            self.bottom = layers(config["dense_in_features"], config["dense_arch_layer_sizes"], True)
            vectors = len(rows) + 1
            self.is_dot = config["interaction"] == "dot"
            width = dim + vectors * (vectors - 1) // 2 if self.is_dot else vectors * dim
            if self.is_dot:
                triangle = torch.triu_indices(vectors, vectors, offset=1)
                self.register_buffer("triangle", triangle, persistent=False)
            else:
                rank, count = config["dcn_low_rank_dim"], config["dcn_num_layers"]
                self.v = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(count))
                self.w = nn.ModuleList(nn.Linear(rank, width) for _ in range(count))
            self.over = layers(width, config["over_arch_layer_sizes"], False)

        def forward(self, dense: torch.Tensor, bags: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
            h = self.bottom(dense)
            pooled = [table(*bag) for table, bag in zip(self.embedding_bags, bags)]
            z = torch.stack([h, *pooled], 1)
            if self.is_dot:
                row, column = self.triangle
                x = torch.cat((h, torch.bmm(z, z.transpose(1, 2))[:, row, column]), 1)
            else:
                x0 = x = z.flatten(1)
                for v, w in zip(self.v, self.w):
                    x = x0 * w(v(x)) + x
            return self.over(x)

    return PlainDLRM()


BARS = {f"{prefix}-{name}": 1.2 for prefix in ("ctr", "mlperf") for name in ("batch", "single", "batch-32")}
COMPARISONS = [
    Comparison("dlrmv2", "torchrec", Ours, Torchrec, workloads, bars=BARS),
    Comparison("dlrmv2", "torch", Ours, Plain, workloads),
]
