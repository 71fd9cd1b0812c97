"""The process under a tool: one call of a case, with drawn inputs, on CUDA.

python -m fastkernels.profiling.one_call '{"case": ..., "layers": [...], "warm": true}'

`warm`: a call before it, so that nothing is compiled in the one that is profiled.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SEED = 1


def request(case_json: str, layers: list[str], warm: bool) -> str:
    return json.dumps({"case": json.loads(case_json), "layers": layers, "warm": warm})


def run(asked: str, device: str = "cuda") -> None:
    import torch

    from fastkernels.loader.inputs import draw, trial_specs
    from fastkernels.loader.materialize import bind, build_module
    from fastkernels.loader.overlay import Overlay
    from fastkernels.records import Case

    wanted = json.loads(asked)
    case = Case.model_validate(wanted["case"])
    specs = trial_specs(case, build_module(Overlay.over_baseline(), case, "meta"))
    with torch.inference_mode():
        module = build_module(
            Overlay.over_baseline([Path(layer) for layer in wanted["layers"]]), case, device
        )
        call = bind(module, case, draw(specs, case, SEED, device=device))
        with call.ambient():
            if wanted["warm"]:
                call.run()
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
            call.run()
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()


if __name__ == "__main__":
    run(sys.argv[1])
