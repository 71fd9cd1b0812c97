"""Whether the oracle of two revisions is the base's as well: a note where it may not be.

The oracle is made of the baseline tasks, `nn` and the kernels' references, and runs in the judge's process:
it is that of the `fk` that runs. Where this is the head's, and its references are as wrong as its kernels, a
wrong head passes. The base's own would need a second judge that imports the base (docs/gates.md).
"""

from __future__ import annotations

import filecmp
from pathlib import Path

import fastkernels
from fastkernels import kernels
from fastkernels.layout import data_dir


def notes(base: Path, name: str) -> tuple[str, ...]:
    """`base`: the folder that a worker of the base imports from; `name`: what the user called it."""
    differing = _differing(base)
    if not differing:
        return ()
    return (
        f"{len(differing)} files that the oracle may be made of are not as in {name}, among them "
        f"{differing[0]}: right is what the fk that runs says. To ask the base's, run the fk of {name}",
    )


def _differing(base: Path) -> list[str]:
    """Python files of the oracle that both have, with another content. Implementations in files of their own
    are none of it, and what only one side has does nothing unless another file changed as well."""
    ours = Path(fastkernels.__file__).parent
    both = {
        ours / "kernels": base / "fastkernels" / "kernels",
        ours / "nn": base / "fastkernels" / "nn",
        data_dir("baseline"): base.parent / "tasks" / "baseline",
    }
    implementations = _implementations()
    return [
        file.relative_to(here.parent).as_posix()
        for here, there in both.items()
        for file in sorted(here.rglob("*.py"))
        if file not in implementations
        and (other := there / file.relative_to(here)).is_file()
        and not filecmp.cmp(file, other, shallow=False)
    ]


def _implementations() -> set[Path]:
    """What a kernel may run in place of its reference, which is right by definition."""
    package = Path(fastkernels.__file__).parent
    sources = {i.source for kernel in kernels.registered.values() for i in kernel.implementations}
    modules = {source for source in sources if isinstance(source, str)}
    return {package.parent.joinpath(*module.split(".")).with_suffix(".py") for module in modules}
