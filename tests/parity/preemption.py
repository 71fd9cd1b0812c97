"""Generation that is interrupted, of models that keep states for each request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fastkernels import LLM, SamplingParams


def preempted(
    folder: Path, prompts: Mapping[int, list[int]], params: SamplingParams
) -> tuple[dict[int, list[int]], int]:
    """(the text of each prompt, preemptions). States need no blocks, so nothing runs out by itself: every
    third step one row is sent back."""
    llm = LLM(folder, device="cpu", max_num_seqs=4, max_num_batched_tokens=24)
    for name, prompt in prompts.items():
        llm.add_request(prompt, params, request_id=str(name))
    found, steps, ledger = {}, 0, llm._scheduler.ledger
    while llm.has_unfinished_requests():
        found |= {int(out.request_id): out.outputs[0].token_ids for out in llm.step()}
        steps += 1
        if steps % 3 == 0 and len(ledger.running) > 1:
            ledger.preempt(int(ledger.running[-1]))
    return found, llm.stats()["preemptions"]
