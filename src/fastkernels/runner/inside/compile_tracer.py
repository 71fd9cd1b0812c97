"""The column `compile`, in the worker: whether torch.compile can trace a module whole, and how often.

Tracing generates no code (as the backend `eager`). Traces of several calls of one kind of module, of other
sizes each, are counted together: production compiles once for all sizes, or nearly so, and a module that is
traced anew for each makes it compile while it serves.
"""

from __future__ import annotations

from typing import Any

from fastkernels.loader.materialize import Call

LIBRARIES = ("torch._dynamo",)  # as long to import as torch
_DETAIL_CHARACTERS = 400


class Tracer:
    """`trace` one call after another; `forget` what was traced."""

    def __init__(self) -> None:
        self._traces = 0

    def trace(self, call: Call) -> dict[str, Any]:
        """{"status": "ok" | "graph break" | "error", "detail": ..., "traces": so far, with this one}."""
        import torch
        from torch._dynamo.exc import Unsupported, UserError
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

        status, detail = "ok", ""
        # Always the same backend: traces that another made are not used again.
        compiled = torch.compile(call.module, fullgraph=True, backend=self._backend)
        try:
            with torch.inference_mode(), call.ambient():
                compiled(*call.args, **call.kwargs)
        # A branch on a tensor's value that `item()` made a number is no `Unsupported`, and breaks as well.
        except (Unsupported, UserError, GuardOnDataDependentSymNode) as error:
            status, detail = "graph break", _first_lines(error)
        except Exception as error:
            status, detail = "error", f"{type(error).__name__}: {_first_lines(error)}"
        return {"status": status, "detail": detail, "traces": self._traces}

    def forget(self) -> None:
        import torch._dynamo

        torch._dynamo.reset()
        self._traces = 0

    def _backend(self, graph: Any, example_inputs: Any) -> Any:
        self._traces += 1
        return graph.forward


def _first_lines(error: Exception) -> str:
    """The message without dynamo's advice on how to debug it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " · ".join(lines[:3])[:_DETAIL_CHARACTERS]
