"""How a prompt is continued that comes without parameters: as the model's generation_config.json says.

The fields are those that vLLM reads, and `do_sample: false`, which means greedy. The ids that end a text come
from the same file (`ModelSource.stop_ids`). Its other fields have no effect.
"""

from __future__ import annotations

from typing import Any

from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.errors import FileFormatError, RequestError
from fastkernels.loader.weights import ModelSource

# Fields of the file, and the parameters that they are defaults of.
FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_params(source: ModelSource) -> SamplingParams:
    """SamplingParams with what the file says; a FileFormatError names the field that is wrong."""
    file, found = source.generation
    given: dict[str, Any] = {}
    for field, name in FIELDS.items():
        if found.get(field) is not None:
            given[name] = found[field]
            try:
                SamplingParams(**{name: found[field]})
            except RequestError as error:
                raise FileFormatError(file, field, str(error)) from error
    if not isinstance(does_sample := found.get("do_sample"), bool | None):
        raise FileFormatError(file, "do_sample", f"{does_sample!r:.60}: must be true or false")
    if does_sample is False:
        given["temperature"] = 0.0
    return SamplingParams(**given)
