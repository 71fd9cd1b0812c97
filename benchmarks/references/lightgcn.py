"""LightGCN in torch-geometric, on the normalised matrix in compressed rows, which cuSPARSE multiplies:
as a user gets it; compiled, with CUDA graphs; and captured in a CUDA graph.

Both sides propagate the whole graph in every run, begin with the pairs on the host and end with scores on the
device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, requests


class TorchGeometric:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled", "captured")

    def __init__(self, machine: Machine) -> None:
        import torch
        import torch_geometric
        from torch_geometric.nn.models import LightGCN

        self._machine, self._device = machine, torch.device(machine.device)
        self.version = torch_geometric.__version__
        config = machine.config
        self._users, nodes = config["num_users"], config["num_nodes"]
        layers, dim = config["num_layers"], config["embedding_dim"]
        self._model = machine.filled(lambda: LightGCN(nodes, dim, layers, normalize=False))
        self._graph = self._normalised(config)

    def _normalised(self, config: dict[str, Any]) -> Any:
        import torch

        from fastkernels.nn.bipartite import normalised, random_edges

        drawn = config["graph"]
        counts = (drawn["num_edges"], drawn["num_duplicates"], drawn["num_isolated"], drawn["seed"])
        sides = (config["num_users"], config["num_items"])
        starts, columns, values = normalised(random_edges(*sides, *counts), *sides)
        values = values.to(getattr(torch, self._machine.dtype))
        parts = [part.to(self._device) for part in (starts, columns, values)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
            return torch.sparse_csr_tensor(*parts, (sum(sides), sum(sides)), check_invariants=False)

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        from fastkernels.nn.batching import sent

        torch.compiler.reset()
        (one,) = requests(workload, self._machine)
        pairs = torch.stack((one["users"], one["items"] + self._users))
        call: Callable[..., Any] = partial(self._model, self._graph)
        if setting == "compiled":
            call = torch.compile(call, mode="reduce-overhead")
        elif setting == "captured":
            call = self._captured(call, sent(pairs, self._device))

        @torch.inference_mode()
        def run() -> int:
            assert len(call(sent(pairs, self._device))) == workload.shapes[0]["pairs"]
            return 1

        return run

    def _captured(self, call: Callable[..., Any], static: Any) -> Callable[..., Any]:
        import torch

        if self._device.type != "cuda":
            raise RuntimeError("CUDA graphs need a GPU")
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode():
            for _ in range(3):
                call(static)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                result = call(static)

        def replayed(pairs: Any) -> Any:
            static.copy_(pairs, non_blocking=True)
            graph.replay()
            return result.clone()

        return replayed


_workloads: Any = partial(one_batch, "lightgcn")
COMPARISONS = [
    Comparison(
        "lightgcn",
        "torch_geometric",
        Ours,
        TorchGeometric,
        _workloads,
        bars=dict.fromkeys(("recommend-batch", "recommend-single", "recommend-batch-32"), 1.2),
    )
]
