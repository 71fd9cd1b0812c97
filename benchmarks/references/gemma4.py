"""Gemma 4 in transformers, for a machine without vLLM: `generate`, in every setting of transformers_lm.

No bars: the project's are those against vLLM (vllm_lm.py).
"""

from __future__ import annotations

from references.base import Comparison
from references.language import Ours, workloads
from references.transformers_lm import Transformers

COMPARISONS = [Comparison("gemma4", "transformers", Ours, Transformers, workloads)]
