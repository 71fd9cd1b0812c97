"""One capture of a checkpoint with favourites, one of random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastkernels.capture.run import CaptureRequest, run_capture
from tests.golden_folders import skewed_checkpoint


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory) -> Path:
    return skewed_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def capture(model: Path | str, out: Path, **changes: object) -> Path:
    asked = {"size": "tiny", "device": "cpu", "requests": 4, "tokens": 300, "hidden_tokens": 20}
    run_capture(CaptureRequest(model=str(model), out=str(out), **{**asked, **changes}))
    return out


@pytest.fixture(scope="package")
def skewed(checkpoint: Path, tmp_path_factory) -> Path:
    return capture(checkpoint, tmp_path_factory.mktemp("skewed") / "golden")


@pytest.fixture(scope="package")
def random_weights(tmp_path_factory) -> Path:
    return capture("mixtral", tmp_path_factory.mktemp("random") / "golden")
