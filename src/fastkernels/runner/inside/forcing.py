"""A worker in which some kernels prefer another implementation than the device's table says (`--providers`).

`kernels.use` asks for its choice on every call, some microseconds of Python that the baseline does not pay.
Here the preference itself is replaced, so both sides choose in the same way and cost the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fastkernels.errors import KernelError
from fastkernels.kernels import policy, registered, reload_policy, skipped
from fastkernels.kernels.policy import Entry


@contextmanager
def preferring(implementations: Mapping[str, str]) -> Iterator[None]:
    """In the body kernel K runs `implementations[K]` where that can serve the call, else its reference."""
    original = policy.preferred

    def preferred(kernel: str, own: list[Entry], device: str) -> list[Entry]:
        if kernel in implementations:
            return [Entry(implementations[kernel]), Entry("reference")]
        return original(kernel, own, device)

    policy.preferred = preferred
    reload_policy()
    try:
        yield
    finally:
        policy.preferred = original
        reload_policy()


def references() -> dict[str, str]:
    """For a call whose kernels do not matter: nothing has to be built for them."""
    return dict.fromkeys(registered, "reference")


def require(implementations: Mapping[str, str], seen: Mapping[str, str]) -> None:
    """KernelError, with the reason, for the first kernel of a call that ran something else. A reference
    serves every call: where another ran, the caller asked for that itself."""
    for kernel, name in implementations.items():
        if name != "reference" and kernel in seen and seen[kernel] != name:
            reasons = [why for (k, i, why) in skipped if (k, i) == (kernel, name)]
            raise KernelError(
                f"Kernel {kernel}, implementation {name}: {reasons[-1] if reasons else 'not chosen'}"
            )
