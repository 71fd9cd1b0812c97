"""FastKernels: a kernel benchmark that is an inference framework.

    from fastkernels import LLM, Model, SamplingParams

Importing the package loads no torch: the public names are resolved on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastkernels.engine.core.sampling_params import SamplingParams
    from fastkernels.engine.llm import LLM
    from fastkernels.engine.model import Model

__version__ = "0.1.0"
__all__ = ["LLM", "Model", "SamplingParams", "__version__"]

_PUBLIC = {
    "LLM": "fastkernels.engine.llm",
    "Model": "fastkernels.engine.model",
    "SamplingParams": "fastkernels.engine.core.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fastkernels' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
