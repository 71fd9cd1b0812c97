"""The column `compile`: whether torch.compile can trace a module whole, as its parent would be traced in
production."""

from __future__ import annotations

from typing import Any

from fastkernels.loader.materialize import Call

_DETAIL_CHARACTERS = 400


def check(call: Call) -> dict[str, Any]:
    """{"status": "ok" | "graph break" | "error", "detail": ...}. Traces without generating code (backend
    `eager`)."""
    import torch._dynamo
    from torch._dynamo.exc import Unsupported

    torch._dynamo.reset()
    compiled = torch.compile(call.module, fullgraph=True, backend="eager")
    try:
        with torch.inference_mode(), call.ambient():
            compiled(*call.args, **call.kwargs)
    except Unsupported as error:
        return {"status": "graph break", "detail": _first_lines(error)}
    except Exception as error:
        return {"status": "error", "detail": f"{type(error).__name__}: {_first_lines(error)}"}
    finally:
        torch._dynamo.reset()
    return {"status": "ok", "detail": ""}


def _first_lines(error: Exception) -> str:
    """The message without dynamo's advice on how to debug it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " · ".join(lines[:3])[:_DETAIL_CHARACTERS]
