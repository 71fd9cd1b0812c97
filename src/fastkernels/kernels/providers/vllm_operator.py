"""vLLM's compiled operators without vLLM.

Importing vLLM sets environment variables, patches Inductor and turns cuDNN's attention off. Its compiled
files need torch alone: loading one registers its operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

# Where an operator's namespace lies in the package.
FILES = {
    "_C": "_C_stable_libtorch.abi3.so",
    "_vllm_fa3_C": "vllm_flash_attn/_vllm_fa3_C.abi3.so",
    "_flashmla_C": "_flashmla_C.abi3.so",
}


@dataclass(frozen=True)
class Operator:
    """`torch.ops.<namespace>.<name>`. arguments: all that a call here passes, in their order; the operator of
    another version of vLLM may take others."""

    namespace: str
    name: str
    arguments: str

    @cached_property
    def missing(self) -> str | None:
        """Why it cannot be called here, or None."""
        if not self._is_registered:
            try:
                torch.ops.load_library(str(self._file))
            except OSError as error:
                return f"vLLM's {FILES[self.namespace]} cannot be loaded: {error}"
        if not self._is_registered:
            return f"vLLM's {FILES[self.namespace]} has no {self.name}"
        wanted = self.arguments.split()
        taken, more = self._schema[: len(wanted)], self._schema[len(wanted) :]
        if [a.name for a in taken] != wanted or any(not a.has_default_value() for a in more):
            takes = ", ".join(a.name for a in self._schema)
            return f"vLLM's {self.name} takes other arguments than in version 0.26: {takes}"
        return None

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The operator, where nothing is missing."""
        return self._packet.default

    @property
    def _is_registered(self) -> bool:
        return hasattr(getattr(torch.ops, self.namespace), self.name)

    @property
    def _packet(self) -> Any:
        return getattr(getattr(torch.ops, self.namespace), self.name)

    @property
    def _schema(self) -> list[Any]:
        return self._packet.default._schema.arguments

    @property
    def _file(self) -> Path:
        spec = find_spec("vllm")
        folders = spec.submodule_search_locations if spec else None
        return Path(folders[0] if folders else "vllm", FILES[self.namespace])
