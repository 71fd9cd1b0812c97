"""Which classes of production kernels a baseline is without."""

import pytest

from fastkernels import kernels, registry
from fastkernels.kernels.choice import Implementation
from fastkernels.measure import absent as module
from fastkernels.measure.absent import absent

# Implementations that nobody has written here; a name that is misspelt would be absent everywhere.
UNWRITTEN = {"causal_conv1d", "mamba_ssm"}


@pytest.fixture
def here(monkeypatch):
    """On a GPU of this capability, with these implementations of kernels and no others installed."""

    def set_up(capability: int, **installed: str) -> None:
        absent.cache_clear()
        monkeypatch.setattr(module, "_capability", lambda: capability)
        for kernel, name in installed.items():
            own = kernels.registered[kernel]
            added = {name: Implementation(name, kernel)}
            monkeypatch.setattr(own, "_by_name", {**own._by_name, **added})
        names = set(installed.values())
        monkeypatch.setattr(Implementation, "not_here", lambda self, device: self.name not in names or None)

    yield set_up
    absent.cache_clear()


def test_the_facts_name_kernels_and_implementations() -> None:
    known = {name for kernel in kernels.registered.values() for name in kernel.names} | UNWRITTEN
    names = [one.name for one in registry.production()]
    assert len(names) == len(set(names))
    for one in registry.production():
        assert set(one.of) <= kernels.registered.keys(), one.name
        assert set(one.by) <= known, one.name


def test_a_class_is_absent_where_no_implementation_of_the_operation_is_installed(here) -> None:
    here(9)
    assert absent("L1/prefill_attention", "cuda") == ("FlashAttention-3",)
    here(10)
    assert absent("L1/prefill_attention", "cuda") == ("FlashAttention-4",)
    assert absent("L1/linear", "cuda") == (), "cuBLAS comes with PyTorch"
    here(9, prefill_attention="flash_attn_3")
    assert absent("L1/prefill_attention", "cuda") == ()
    assert "FlashAttention-3" in absent("L1/mla_attention", "cuda"), "it has none of another operation"


def test_a_task_is_without_what_the_tasks_below_it_are_without(here) -> None:
    here(9, decode_attention="flashinfer")
    assert "FlashAttention-3" in absent("L2/paged_attention", "cuda")
    assert "FlashAttention-3 or FlashInfer" not in absent("L2/paged_attention", "cuda")
    model = absent(registry.architecture("llama").task, "cuda")
    assert {"FlashAttention-3", "norms of vLLM, FlashInfer or Quack"} <= set(model)
    assert "flash-linear-attention" not in model


def test_nothing_is_said_of_a_cpu(here) -> None:
    here(9)
    assert absent("L1/prefill_attention", "cpu") == ()
