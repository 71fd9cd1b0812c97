"""Media in JSON become what models take; what cannot be read says why."""

from __future__ import annotations

import base64
import io
import wave
import zlib

import numpy as np
import pytest
from PIL import Image

from fastkernels.serve import media
from fastkernels.serve.errors import ApiError


def url(form: str, content: bytes) -> str:
    return f"data:{form};base64,{base64.b64encode(content).decode()}"


def png(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return url("image/png", file.getvalue())


def wav(samples: np.ndarray, rate: int = 16000, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def test_media_are_read() -> None:
    rng = np.random.default_rng(0)
    image, grey = rng.integers(256, size=(6, 4, 3), dtype=np.uint8), np.full((6, 4), 7, np.uint8)
    samples = np.array([0, 16384, -32768])
    got = media.multi_modal_data(
        {
            "image": [png(image), png(grey)],
            "video": [[png(image), png(image[::-1])]],
            "audio": [url("audio/wav", wav(samples))],
        }
    )
    assert (got["image"][0] == image).all()
    assert (got["image"][1] == 7).all()
    assert got["image"][1].shape == (6, 4, 3)
    assert (got["video"] == np.stack([image, image[::-1]])).all()
    assert got["audio"][0].tolist() == [0.0, 0.5, -1.0]
    assert (got["audio"][0].dtype, got["audio"][1]) == (np.float32, 16000)
    part = {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}
    assert media.part_of_chat(part) == ("audio", "data:audio/wav;base64,QQ==")


def huge() -> bytes:
    """A PNG of few bytes whose header says 60,000 x 60,000."""
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    content = bytearray(file.getvalue())
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


def test_many_small_files_hold_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MOST_PIXELS", 100)
    image = png(np.zeros((6, 8), np.uint8))
    media.multi_modal_data({"image": [image, image]})
    for given in ([image, image, image], [[image, image, image]]):
        with pytest.raises(ApiError, match="of all images of a request 100 are read"):
            media.multi_modal_data({"image": given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("https://example.org/a.png", "nothing is fetched"),
        ("file:///etc/passwd", "nothing is fetched"),
        (7, "nothing is fetched"),
        ("data:image/png;base64,?", "base64"),
        (url("image/png", b"no image"), "Pillow cannot read it"),
        (url("image/png", huge()), "60000|decompression bomb"),
        (url("video/mp4", b""), "'video/mp4' is not read here"),
        (url("audio/wav", b"RIFF"), "no WAV"),
        (url("audio/wav", wav(np.zeros(4), channels=2)), "2 channels of 16 bits"),
        ([], "frames of a video"),
        ([png(np.zeros((2, 2), np.uint8)), png(np.zeros((2, 3), np.uint8))], "images of one size"),
    ],
)
def test_what_cannot_be_read_says_why(given, says: str) -> None:
    with pytest.raises(ApiError, match=says) as raised:
        media.multi_modal_data({"image": [given]})
    assert raised.value.status == 400
