"""Write registry/cases by walking the registered configurations; `--check` compares instead and exits 1 on a difference.

    python scripts/build_cases.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fastkernels.layout import data_dir
from fastkernels.loader.batches import pool_blocks
from fastkernels.loader.overlay import Overlay
from fastkernels.registry.build import build, render


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the files, write nothing")
    check = parser.parse_args().check

    folder = data_dir("registry") / "cases"
    texts = {folder / f"{task}.jsonl": render(cases)
             for task, cases in build(Overlay.over_baseline().load, pool_blocks).items()}
    stale = [path for path in folder.glob("L*/*.jsonl") if path not in texts]
    changed = [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]
    for path in (*changed, *stale):
        print(f"{'differs' if check else 'removed' if path in stale else 'written'}: {path.relative_to(Path(folder))}")
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
