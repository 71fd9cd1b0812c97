"""Fixtures of tests that compile kernels."""

import pytest


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Triton finds nothing that was compiled before."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
