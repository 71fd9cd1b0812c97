"""Random weights whose texts do not repeat themselves.

The vocabulary of a tiny model is so small that some token often follows itself, and a greedy text that comes
to it goes on so for ever: half of the draws of tiny Llama repeat more than a twentieth of all they say. Such
weights ask for no model (score/timed_tokens.py). With a vocabulary of 16,384 none of sixteen draws did.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.registry.workloads import TokenWorkload
from fastkernels.score.timed_tokens import MOST_REPEATED, repeated

TEXTS = 16


def wandering(model: str, config: str, seeds: Sequence[int], workload: TokenWorkload) -> int:
    """The first of `seeds` whose model says texts that repeat little; the last one where none does. Looked at
    on a CPU, whatever the device is."""
    for seed in seeds:
        if _repeated(model, config, seed, workload) <= MOST_REPEATED:
            return seed
    return seeds[-1]


def _repeated(model: str, config: str, seed: int, workload: TokenWorkload) -> float:
    length = workload.input_len + workload.output_len
    llm = LLM(model, config=config, device="cpu", seed=seed, max_num_seqs=TEXTS, max_model_len=length)
    rng = random.Random(seed)
    prompts = [[rng.randrange(llm.vocabulary) for _ in range(workload.input_len)] for _ in range(TEXTS)]
    greedy = SamplingParams(temperature=0.0, max_tokens=workload.output_len, ignore_eos=True)
    outputs = llm.generate(prompts, greedy)
    return statistics.fmean(repeated(output.outputs[0].token_ids) for output in outputs)
