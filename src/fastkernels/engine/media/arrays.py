"""Inputs in the forms that callers have them: tensors, NumPy arrays, PIL images, numbers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from fastkernels.errors import RequestError

_MODE = "RGB"


def value_of(given: Any) -> Any:
    """A tensor of an array, uint8 [H, W, C] of a PIL image; anything else as it is: the model takes or
    refuses it.

    RequestError for a PIL image that has other colours or cannot be read.
    """
    if _is_pil(given):
        given = _read(given)
    if isinstance(given, np.ndarray) and given.dtype.kind in "biuf" and given.dtype.itemsize <= 8:
        # A copy: it may be read-only, run backwards, or have the bytes of another machine.
        return torch.from_numpy(given.astype(given.dtype.newbyteorder("="), order="C"))
    return given


def picture_of(given: Any) -> Any:
    """As `value_of`, of an image in any colours: grey is repeated, alpha is left out, as PIL converts them. A
    copy of tensors too: the caller may change them while the request waits.

    RequestError for a PIL image that cannot be read.
    """
    if _is_pil(given):
        return value_of(_read(given, convert=True))
    value = value_of(given)
    is_plain = isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta
    if is_plain and value.dtype == torch.uint8 and not value.is_nested:
        value = value.clone() if value is given else value
        if value.dim() == 2:
            value = value[..., None]
        if value.dim() == 3 and value.shape[-1] in (1, 4):
            value = value.expand(-1, -1, 3) if value.shape[-1] == 1 else value[..., :3]
    return value


def _is_pil(given: Any) -> bool:
    """PIL is no dependency: whoever has such an image has imported it."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(given, module.Image)


def _read(image: Any, convert: bool = False) -> np.ndarray:
    if image.mode != _MODE and not convert:
        raise RequestError(
            f"a PIL image of mode {image.mode}: the model takes {_MODE}. Use convert('{_MODE}')"
        )
    try:
        image.load()  # files are read here, not when they are opened
        image = image.convert(_MODE)
    except Exception as error:  # decoders of files raise whatever they like
        raise RequestError(f"a PIL image cannot be read: {error}") from error
    return np.asarray(image)
