"""Random weights whose texts do not repeat themselves.

The vocabulary of a tiny model is so small that some token often follows itself, and a greedy text that comes
to it goes on so for ever: half of the draws of tiny Llama repeat more than a twentieth of all they say. Such
weights ask for no model (score/timed_tokens.py). With a vocabulary of 16,384 none of sixteen draws did.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import torch

from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.registry.workloads import TokenWorkload
from fastkernels.score.timed_tokens import MOST_REPEATED, repeated

TEXTS = 16
# Of them: the texts of a trial are others, and repeat more than those by which weights are chosen.
MOST = MOST_REPEATED / 2


def wandering(model: str, config: str, seeds: Sequence[int], workloads: Sequence[TokenWorkload]) -> int:
    """The first of `seeds` whose model says texts that repeat little, at every workload's length; the last
    one where none does. Looked at on a CPU, whatever the device is."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on cores that are busy two wait for one another, at every operator
    try:
        for seed in seeds:
            if _repeated(model, config, seed, workloads) <= MOST:
                return seed
    finally:
        torch.set_num_threads(threads)
    return seeds[-1]


def _repeated(model: str, config: str, seed: int, workloads: Sequence[TokenWorkload]) -> float:
    """Of the workload with the largest share."""
    longest = max(workloads, key=lambda workload: workload.output_len)
    length = longest.input_len + longest.output_len
    llm = LLM(model, config=config, device="cpu", seed=seed, max_num_seqs=TEXTS, max_model_len=length)
    rng = random.Random(seed)
    prompts = [[rng.randrange(llm.vocabulary) for _ in range(longest.input_len)] for _ in range(TEXTS)]
    greedy = SamplingParams(temperature=0.0, max_tokens=longest.output_len, ignore_eos=True)
    texts = [output.outputs[0].token_ids for output in llm.generate(prompts, greedy, use_tqdm=False)]
    lengths = {workload.output_len for workload in workloads}
    return max(statistics.fmean(repeated(text[:length]) for text in texts) for length in lengths)
