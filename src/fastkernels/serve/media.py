"""Media in a request's JSON: data URLs to what `multi_modal_data` takes.

    data:image/png;base64,...     any format that Pillow reads: RGB, uint8 [H, W, 3]
    data:audio/wav;base64,...     PCM of 16 bits: (float32 [N] of one channel, samples a second)
    [data:image/..., ...]         frames of one video: uint8 [F, H, W, 3]

Nothing is fetched: a URL of another kind is refused.
"""

from __future__ import annotations

import base64
import binascii
import io
import wave
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastkernels.serve.errors import ApiError

MOST_PIXELS = 1 << 26  # of all images of a request: a small file may hold a huge one


def multi_modal_data(given: Mapping[str, Any]) -> dict[str, Any]:
    """{"image": [URL, ...]} with the media in place of their URLs; one medium stands alone."""
    return gathered([(kind, one) for kind, listed in given.items() for one in _listed(kind, listed)])


def gathered(media: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Media, in the order of the prompt, by kind: models that take one get it alone."""
    by_kind: dict[str, list[Any]] = {}
    decoder = _Decoder()
    for kind, given in media:
        by_kind.setdefault(kind, []).append(decoder.decoded(kind, given))
    return {kind: found[0] if len(found) == 1 else found for kind, found in by_kind.items()}


def part_of_chat(part: Mapping[str, Any]) -> tuple[str, Any] | None:
    """(kind, data URL) of a part of a message; None for text. ApiError for a part that is not served."""
    match part:
        case {"type": "text", "text": str()}:
            return None
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return "image", url
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            return "audio", f"data:audio/{form};base64,{data}"
    kind = part.get("type") if isinstance(part, Mapping) else part
    raise ApiError(
        400, f"messages: a part is text, image_url or input_audio, not {kind!r:.60}", param="messages"
    )


def _listed(kind: str, given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise ApiError(400, f"multi_modal_data: {kind} is a list of data URLs", param="multi_modal_data")
    return given


class _Decoder:
    """Of one request."""

    def __init__(self) -> None:
        self._left = MOST_PIXELS

    def decoded(self, kind: str, given: Any) -> Any:
        if isinstance(given, list):
            frames = [self.decoded(kind, frame) for frame in given]
            if not frames or len({getattr(frame, "shape", None) for frame in frames}) > 1:
                raise ApiError(400, f"{kind}: frames of a video are images of one size")
            return np.stack(frames)
        head, comma, data = given.partition(",") if isinstance(given, str) else ("", "", "")
        form = head.removeprefix("data:").removesuffix(";base64")
        if not comma or head != f"data:{form};base64":
            raise ApiError(
                400, f"{kind}: give it as a data URL (data:image/png;base64,...): nothing is fetched"
            )
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ApiError(400, f"{kind}: its base64 cannot be read: {error}") from None
        if form.startswith("image/"):
            return self._image(kind, content)
        if form in ("audio/wav", "audio/x-wav", "audio/wave"):
            return _wave(kind, content)
        raise ApiError(400, f"{kind}: {form!r:.60} is not read here; image/* and audio/wav are")

    def _image(self, kind: str, content: bytes) -> np.ndarray:
        from PIL import Image

        try:
            image = Image.open(io.BytesIO(content))
            width, height = image.size
            self._left -= width * height
            if self._left >= 0:
                return np.asarray(image.convert("RGB"))
        except Exception as error:  # decoders of files raise whatever they like
            raise ApiError(400, f"{kind}: Pillow cannot read it: {error}") from None
        what = f"{width} x {height} pixels"
        raise ApiError(400, f"{kind}: {what}; of all images of a request {MOST_PIXELS} are read")


def _wave(kind: str, content: bytes) -> tuple[np.ndarray, int]:
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            samples = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ApiError(400, f"{kind}: no WAV of PCM: {error}") from None
    if (channels, width) != (1, 2):
        what = f"{channels} channels of {8 * width} bits"
        raise ApiError(400, f"{kind}: a WAV of {what}; one channel of 16 bits is read")
    return np.frombuffer(samples, "<i2").astype(np.float32) / 32768, rate
