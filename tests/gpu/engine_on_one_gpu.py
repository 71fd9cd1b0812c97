"""An engine of two ranks that are both on GPU 0: text of one rank and of two, as JSON.

NCCL refuses two ranks on a GPU. Sums over ranks are our kernel's (exchange_triton.py); ids of the split
vocabulary go over the host, by Gloo, which no CUDA graph can hold: all steps are eager. Each rank imports
this file with the blueprint that it gets.
"""

from __future__ import annotations

import faulthandler
import json
import os
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from fastkernels import LLM, SamplingParams, kernels
from fastkernels.engine import llm
from fastkernels.engine.core import follower, parallel, ranks
from fastkernels.kernels import symmetric
from tests.gpu.ranks_on_gpus import OnOneGpu

LIMIT_S = 80
PROMPTS = [[3, 5, 7, 9], [100, 2, 3], list(range(3, 43)), [7, 8]]
_EACH: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
PARAMS = [
    SamplingParams(temperature=0.0, **_EACH),
    SamplingParams(temperature=1.0, seed=5, **_EACH),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=7, logprobs=3, **_EACH),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, seed=1, **_EACH),
]


class Blueprint(follower.Blueprint):
    def device(self, rank: int) -> torch.device:
        return super().device(0)


def _join(blueprint: Blueprint, rank: int) -> OnOneGpu:
    store = FileStore(blueprint.place, blueprint.size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=blueprint.size)
    return OnOneGpu()


follower.join = ranks.join = _join  # pyright: ignore[reportAttributeAccessIssue]
llm.Blueprint = Blueprint  # pyright: ignore[reportAttributeAccessIssue]
parallel.device_of_rank_0 = lambda device, size: device
symmetric._unshared = lambda ranks: None
os.environ |= {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1", "GLOO_SOCKET_IFNAME": "lo"}


def texts(size: int, model: str, device: str, **options: Any) -> list[list[int]]:
    made = LLM(
        model,
        config="tiny",
        device=device,
        dtype="float32",
        num_kv_cache_blocks=400,
        max_num_seqs=4,
        enforce_eager=True,
        tensor_parallel_size=size,
        **options,
    )
    try:
        return [one.outputs[0].token_ids for one in made.generate(PROMPTS, PARAMS, use_tqdm=False)]
    finally:
        made.shutdown()


def main(device: str = "cuda:0", all_reduce: str = "triton") -> None:
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    found = {}
    with kernels.use(all_reduce=all_reduce):
        for name, model, options in (
            ("llama", "llama", {}),
            ("slices of experts", "mixtral", {}),
            ("whole experts", "mixtral", {"enable_expert_parallel": True}),
        ):
            found[name] = texts(1, model, device), texts(2, model, device, **options)
            print(f"{name}: done", flush=True)
    print(json.dumps({"texts": found}), flush=True)
