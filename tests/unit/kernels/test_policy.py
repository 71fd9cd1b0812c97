"""Device tables: what is read, what an absent or broken file means."""

import pytest
import torch

from fastkernels.errors import FileFormatError
from fastkernels.kernels import policy
from fastkernels.kernels.policy import Entry


@pytest.fixture
def devices(tmp_path, monkeypatch):
    """A registry folder of this test's own."""
    (tmp_path / "devices").mkdir()
    monkeypatch.setattr(policy, "data_dir", lambda name: tmp_path)
    policy.table.cache_clear()
    yield tmp_path / "devices"
    policy.table.cache_clear()


TABLE = """
name: CPU
implementations:
  glu: [torch]
  decode_attention:
  - {use: flashinfer, max_rows: 32}
  - triton
"""


def test_a_table(devices):
    (devices / "cpu.yaml").write_text(TABLE)
    assert policy.preferred("glu", [Entry("triton")], "cpu") == [Entry("torch"), Entry("reference")]
    expected = [Entry("flashinfer", 32), Entry("triton"), Entry("reference")]
    assert policy.preferred("decode_attention", [], "cpu") == expected


def test_without_a_row(devices):
    (devices / "cpu.yaml").write_text(TABLE)
    assert policy.preferred("softmax", [Entry("torch")], "cpu") == [Entry("torch"), Entry("reference")]


@pytest.mark.parametrize("text", [None, "", "name: CPU", "implementations:"])
def test_without_a_table(devices, monkeypatch, text):
    """The kernel's own order."""
    monkeypatch.setattr(policy, "device_slug", lambda device: "some-gpu" if device == "cuda" else device)
    if text is not None:
        (devices / "cpu.yaml").write_text(text)
        (devices / "some-gpu.yaml").write_text(text)
    own = [Entry("triton", 32), Entry("torch")]
    for device in ("cpu", "cuda"):
        assert policy.preferred("glu", own, device) == [*own, Entry("reference")]


@pytest.mark.parametrize(
    "text",
    [
        "implementations: [glu]",
        "implementations: {glu: [{use: torch, rows: 3}]}",
        "implementations: {glu: 3}",
        "a: [",
        "3",
    ],
)
def test_a_broken_table_names_its_file(devices, text):
    (devices / "cpu.yaml").write_text(text)
    with pytest.raises(FileFormatError, match=r"cpu\.yaml"):
        policy.table("cpu")


def test_slug():
    assert policy.slug("NVIDIA H200") == "nvidia-h200"
    assert policy.device_slug("cpu") == "cpu"
    if torch.cuda.is_available():
        assert policy.device_slug("cuda") == policy.slug(torch.cuda.get_device_name())


def test_the_projects_own_tables_name_kernels_and_implementations_that_exist():
    from fastkernels import kernels
    from fastkernels.layout import data_dir

    policy.table.cache_clear()
    for path in sorted((data_dir("registry") / "devices").glob("*.yaml")):
        for kernel, entries in policy.table(path.stem).items():
            assert kernel in kernels.registered, path
            for entry in entries:
                assert entry.use in kernels.registered[kernel].names, f"{path}: {kernel}"
    for kernel in kernels.registered.values():
        assert {entry.use for entry in kernel.cpu or ()} <= set(kernel.names)
