"""Fixtures of tests that compile kernels, and which warnings Triton's interpreter may give."""

from pathlib import Path

import pytest

from fastkernels.kernels.policy import interpreting

# It computes with numpy, which warns of infinities that the kernels rely on.
QUIET = [f"ignore:{what} encountered:RuntimeWarning" for what in ("overflow", "invalid value")]


def pytest_collection_modifyitems(items):
    """All items of the run come here, those of other folders too."""
    for item in items:
        if interpreting() and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(*QUIET))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Triton finds nothing that was compiled before."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
