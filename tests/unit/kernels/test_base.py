"""Choice among implementations: by name, by `use`, by table, by declared order; what is counted, kept and
refused.
"""

import itertools
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import base, policy
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.policy import Entry

_count = itertools.count()


@pytest.fixture
def table(monkeypatch):
    """The device tables of this test: it may set entries; choices are forgotten around it."""
    entries: dict[str, list[Entry]] = {}

    def read(device: str) -> dict[str, list[Entry]]:
        return entries if device == "cpu" else {}

    read.cache_clear = lambda: None
    monkeypatch.setattr(policy, "table", read)
    base.reload_policy()
    base.skipped.clear()
    yield entries
    base.reload_policy()
    base.skipped.clear()


@pytest.fixture
def probe(monkeypatch, table):
    """A kernel x + y whose implementations return marked results; `even` refuses odd numbers of elements."""
    name = f"probe_{next(_count)}"

    def module(mark: float, **more) -> str:
        path = f"probe_module_{name}_{mark}".replace(".", "_")
        fake = ModuleType(path)
        setattr(fake, name, lambda x, y: x + y + mark)
        for key, value in more.items():
            setattr(fake, key, value)
        monkeypatch.setitem(sys.modules, path, fake)
        return path

    def only_even(kernel: str, x: Tensor, y: Tensor) -> str | None:
        assert kernel == name
        return "odd" if x.numel() % 2 else None

    kernel = Kernel(
        name,
        "(Tensor x, Tensor y) -> Tensor",
        lambda x, y: x + y,
        fake=lambda x, y: torch.empty_like(x),
        implementations=(
            Implementation("fast", module(10.0), devices=("cpu",)),
            Implementation("even", module(20.0, unsupported=only_even), devices=("cpu",)),
            Implementation("gpu", "not.to.be.imported"),
            Implementation(
                "absent", "not.to.be.imported", ("cpu",), requires=("no_such_package",), extra="gpu"
            ),
        ),
        rows=lambda x, y: x.numel(),
        cpu=(),
    )
    yield kernel
    del base.registered[name]


ONE, TWO, THREE = torch.zeros(1), torch.zeros(2), torch.zeros(3)


def mark(kernel, x, **options):
    return kernel(x, x, **options)[0].item()


def test_the_kernels_own_order_without_a_table(probe):
    assert mark(probe, TWO) == 0
    assert probe._order("cuda") == [Entry("gpu")]
    probe.cpu = (Entry("even", max_rows=2), Entry("fast"))
    assert [entry.use for entry in probe._order("cpu")] == ["even", "fast"]
    probe.cpu = None
    assert [entry.use for entry in probe._order("cpu")] == ["fast", "even", "absent"]
    probe.forget_choices()
    assert mark(probe, TWO) == 10


def test_by_name(probe):
    assert mark(probe, TWO, impl="fast") == 10
    assert mark(probe, TWO, impl="reference") == 0


def test_by_name_refuses_with_the_reason(probe):
    for impl, reason in [
        ("nonesuch", r"no implementation 'nonesuch'; it has reference, fast, even, gpu, absent"),
        ("even", "even: odd"),
        ("gpu", "needs cuda, not cpu"),
        ("absent", r"no_such_package is not installed: pip install -e '\.\[gpu\]' in the checkout"),
    ]:
        with pytest.raises(KernelError, match=reason):
            probe(ONE, ONE, impl=impl)


def test_a_library_need_not_define_what_it_declines(probe, table, monkeypatch):
    """FlashInfer's module declines every call of add_rms_norm, which it has no function for."""
    library = sys.modules[probe.implementation("even").source]
    monkeypatch.delattr(library, probe.name)
    table[probe.name] = [Entry("even"), Entry("fast")]
    assert mark(probe, ONE) == 10
    assert base.skipped == {(probe.name, "even", "odd"): 1}
    with pytest.raises(AttributeError, match=f"even neither defines nor declines {probe.name}"):
        probe(TWO, TWO)


def test_by_table_and_size(probe, table):
    table[probe.name] = [Entry("even", max_rows=2), Entry("fast")]
    assert mark(probe, TWO) == 20
    assert mark(probe, torch.zeros(4)) == 10
    assert not base.skipped, "a size beyond a row is a choice, not a failure"


def test_arguments_are_asked_on_every_call(probe, table):
    """A refusal that depends on arguments must not stick, nor an acceptance."""
    table[probe.name] = [Entry("even"), Entry("fast")]
    assert [mark(probe, x) for x in (TWO, THREE, TWO, ONE, TWO)] == [20, 10, 20, 10, 20]
    assert base.skipped[probe.name, "even", "odd"] == 2


def test_what_is_passed_over_is_counted_each_time(probe, table):
    table[probe.name] = [Entry("gpu"), Entry("absent"), Entry("typo"), Entry("fast")]
    assert [mark(probe, TWO) for _ in range(3)] == [10, 10, 10]
    counted = {name: calls for (kernel, name, _), calls in base.skipped.items() if kernel == probe.name}
    assert counted == {"gpu": 3, "absent": 3, "typo": 3}


def test_a_table_of_which_nothing_serves_ends_at_the_reference(probe, table):
    table[probe.name] = [Entry("gpu")]
    assert mark(probe, TWO) == 0
    assert probe.choose((TWO, TWO)) == "reference"


def test_choices_are_kept_until_the_policy_is_read_again(probe, table):
    table[probe.name] = [Entry("fast")]
    assert mark(probe, TWO) == 10
    table[probe.name] = []
    assert mark(probe, TWO) == 10
    base.reload_policy()
    assert mark(probe, TWO) == 0


def test_use_overrules_the_kept_choice(probe, table):
    table[probe.name] = [Entry("fast")]
    assert mark(probe, TWO) == 10
    with kernels.use("reference"):
        assert mark(probe, TWO) == 0
        with kernels.use(**{probe.name: "even"}):
            assert mark(probe, TWO) == 20
            assert mark(probe, TWO, impl="fast") == 10
            with pytest.raises(KernelError, match="odd"):
                probe(ONE, ONE)
        assert mark(probe, TWO) == 0
    assert mark(probe, TWO) == 10


def test_use_of_a_name_reaches_only_kernels_that_have_it(probe):
    with kernels.use("even"):
        assert mark(probe, TWO) == 20
        assert torch.equal(kernels.softmax(torch.zeros(1, 2)), torch.full((1, 2), 0.5))


def test_use_refuses_unknown_names(probe):
    for every, named, message in [
        (None, {"nonesuch": "triton"}, "No kernel 'nonesuch'"),
        (None, {probe.name: "triton"}, f"{probe.name} has no implementation 'triton'"),
        ("nonesuch", {}, "No kernel has an implementation 'nonesuch'"),
    ]:
        with pytest.raises(KernelError, match=message), kernels.use(every, **named):
            pass
    assert not base._forced


def test_use_ends_with_an_exception(probe):
    with pytest.raises(ZeroDivisionError), kernels.use("reference"):
        raise ZeroDivisionError
    assert not base._forced


def test_meta_tensors_compute_nothing(probe):
    out = probe(TWO.to("meta"), TWO.to("meta"), impl="fast")
    assert out.device.type == "meta"
    assert out.shape == (2,)


def test_why_not(probe):
    assert probe.why_not("reference", (ONE, ONE)) is None
    assert probe.why_not("even", (TWO, TWO)) is None
    assert probe.why_not("even", (ONE, ONE)) == "odd"
    assert "unknown" in (probe.why_not("nonesuch", (ONE, ONE)) or "")


def test_every_kernel_is_declared_soundly():
    """Each declared implementation has a module that can be found, and each reference answers on CPU."""
    expected = {"rms_norm", "add_rms_norm", "glu", "rope", "linear", "embedding", "softmax",
                "store_kv", "prefill_attention", "decode_attention", "sample", "gated_rms_norm",
                "chunk_gla", "recurrent_gla", "causal_conv1d", "causal_conv1d_update",
                "selective_scan", "selective_state_update",
                "modulated_layer_norm", "rope_pairs", "sinusoidal", "rope_store_kv"}  # fmt: skip
    assert expected <= set(kernels.registered)
    for name in expected:
        kernel = kernels.registered[name]
        for implementation in kernel.implementations:
            source = implementation.source
            assert callable(source) or source in sys.modules or find_spec(source), implementation


def test_every_kernel_is_exported():
    """A file that the package does not import from would leave the module under the name of its function."""
    assert all(callable(getattr(kernels, name)) for name in kernels.registered)
