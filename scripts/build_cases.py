"""Write registry/cases by walking the registered configurations.

python scripts/build_cases.py            write
python scripts/build_cases.py --check    compare with the files, exit 1 on a difference
"""

from __future__ import annotations

import argparse
import sys

from fastkernels import registry
from fastkernels.layout import data_dir
from fastkernels.loader.overlay import Overlay
from fastkernels.registry.build import build
from fastkernels.registry.case_lines import render


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the files, write nothing")
    check = parser.parse_args().check

    folder = data_dir("registry") / "cases"
    built = build(Overlay.over_baseline().load)
    texts = {folder / f"{task}.jsonl": render(registry.task(task), cases) for task, cases in built.items()}
    stale = [path for path in folder.glob("L*/*.jsonl") if path not in texts]
    changed = [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]
    for path in changed:
        print(f"{'differs' if check else 'written'}: {path.relative_to(folder)}")
    for path in stale:
        print(f"{'of no task' if check else 'removed'}: {path.relative_to(folder)}")
    if check:
        return 1 if changed or stale else 0
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path])
    for path in stale:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
