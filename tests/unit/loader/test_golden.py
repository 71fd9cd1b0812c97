"""Golden folders are read strictly, and windows of them keep what was hot together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from fastkernels.errors import FileFormatError, UsageError
from fastkernels.loader import golden, routing
from fastkernels.records import Golden, Routing
from tests.golden_folders import hand_made

EXPERTS, K = 6, 2


def random_ids(layers: int, tokens: int, experts: int = EXPERTS, seed: int = 0) -> Tensor:
    scores = torch.rand(layers, tokens, experts, generator=Generator().manual_seed(seed))
    return scores.topk(K).indices


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Layer 0 chooses among the first three experts, layer 1 among the others."""
    ids_LNK = random_ids(2, 90, 3)
    ids_LNK[1] += 3
    return hand_made(tmp_path / "golden", {"prefill": ids_LNK, "decode": random_ids(2, 40)}, EXPERTS)


def captured(folder: Path, phase: str = "prefill") -> Routing:
    return Routing(top_k=K, experts=EXPERTS, skew="captured", golden=Golden(folder=str(folder), phase=phase))


def planned(kind: Routing, tokens: int, seed: int = 0) -> Tensor:
    return routing.plan(kind, tokens, Generator().manual_seed(seed))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("tokens", [1, 2, 7, 40, 89, 500])
def test_a_plan_has_distinct_experts_and_reaches_as_many_as_promised(folder: Path, phase, tokens) -> None:
    kind = captured(folder, phase)
    for seed in range(8):
        ids_TK = planned(kind, tokens, seed)
        assert ids_TK.shape == (tokens, K)
        assert ids_TK.dtype == torch.int64
        assert all(len(set(row)) == K for row in ids_TK.tolist())
        assert ids_TK.unique().numel() == routing.reached(kind, tokens)
    assert planned(kind, 0).shape == (0, K)
    assert routing.reached(kind, 0) == 0


def test_a_window_is_of_one_layer_and_its_tokens_are_consecutive(folder: Path) -> None:
    kept = golden.read(str(folder)).of("prefill", "expert_ids").long()
    seen = set()
    for seed in range(20):
        ids_TK = planned(captured(folder), 30, seed)
        layer = int(ids_TK.min() >= 3)
        assert {e // 3 for e in ids_TK.flatten().tolist()} == {layer}, "layers are not mixed"
        found = sorted(ids_TK.tolist())
        (start,) = [s for s in (0, 30, 60) if sorted(kept[layer, s : s + 30].tolist()) == found]
        seen.add((layer, start))
    assert len(seen) > 3, "windows vary with the seed"


def test_the_order_of_a_window_is_new_in_every_draw(tmp_path: Path) -> None:
    """There is one window: only its order can differ."""
    ids = {"prefill": random_ids(1, 30), "decode": random_ids(1, 30)}
    kind = captured(hand_made(tmp_path / "one", ids, EXPERTS))
    first, second = planned(kind, 30, 1), planned(kind, 30, 2)
    assert not torch.equal(first, second)
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert torch.equal(first, planned(kind, 30, 1))


def test_a_case_larger_than_the_capture_repeats_it(tmp_path: Path) -> None:
    ids = {"prefill": random_ids(1, 10), "decode": random_ids(1, 10)}
    ids_TK = planned(captured(hand_made(tmp_path / "few", ids, EXPERTS)), 25)
    kept = ids["prefill"][0].tolist()
    assert sorted(ids_TK.tolist()) == sorted(2 * kept + kept[:5])


def test_only_windows_that_reach_as_many_experts_as_the_median_are_drawn(tmp_path: Path) -> None:
    """Three windows of four tokens reach 2, 4 and 4 experts."""
    same, four = [[0, 1]] * 4, [[0, 1], [2, 3], [0, 2], [1, 3]]
    ids = torch.tensor([same + four + four])
    kind = captured(hand_made(tmp_path / "mixed", {"prefill": ids, "decode": ids}, EXPERTS))
    assert routing.reached(kind, 4) == 4
    assert all(planned(kind, 4, seed).unique().numel() == 4 for seed in range(12))


def test_logits_are_of_the_same_tokens_as_ids(folder: Path) -> None:
    source = Golden(folder=str(folder), phase="prefill")
    ids_TK = golden.ids(source, 17, Generator().manual_seed(3))
    logits_TE = golden.logits(source, 17, Generator().manual_seed(3))
    assert torch.equal(logits_TE.topk(K).indices, ids_TK)


def test_captured_routing_needs_a_golden_folder_and_no_other_has_one() -> None:
    with pytest.raises(ValueError, match="captured routing"):
        Routing(top_k=2, experts=4, skew="captured")
    with pytest.raises(ValueError, match="captured routing"):
        Routing(top_k=2, experts=4, golden=Golden(folder="x", phase="decode"))


# ---------------------------------------------------------------- damage


def test_what_is_no_golden_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no golden folder.*fk capture --model"):
        golden.read(str(tmp_path))
    with pytest.raises(UsageError, match="is no golden folder"):
        golden.read(str(tmp_path / "nowhere"))


def damaged(folder: Path, name: str, change) -> Path:
    copy = folder.with_name("damaged")
    shutil.copytree(folder, copy)
    (copy / name).write_bytes(change((copy / name).read_bytes()))
    return copy


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (golden.TENSORS, lambda b: b[:-1] + bytes([b[-1] ^ 1]), "digest differs"),
        (golden.TENSORS, lambda b: b[: len(b) // 2], "digest differs"),
        (golden.PROVENANCE, lambda b: b[:-30], "Invalid JSON"),
        (golden.PROVENANCE, lambda b: b.replace(b'"top_k": 2', b'"top_k": "two"'), "top_k"),
        (golden.PROVENANCE, lambda b: b.replace(b'"top_k": 2', b'"top_k": 1'), "expert_ids: is"),
        (golden.PROVENANCE, lambda b: b"\xff\xfe", "not UTF-8"),
    ],
)
def test_damage_is_found_and_named(folder: Path, name: str, change, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        golden.read(str(damaged(folder, name, change)))
    assert caught.value.exit_code == 2


def test_missing_tensors_are_named(folder: Path) -> None:
    (folder / golden.TENSORS).unlink()
    with pytest.raises(FileFormatError, match=r"No such file.*Capture it again"):
        golden.read(str(folder))


@pytest.mark.parametrize("wrong", [EXPERTS, -1, 0])
def test_ids_must_be_distinct_experts(tmp_path: Path, wrong: int) -> None:
    """0: the token has it already. A kernel would read beyond its weights for the others."""
    ids = random_ids(1, 5)
    bad = ids.clone().int()
    bad[0, 3] = torch.tensor([0, wrong])
    path = hand_made(tmp_path / "bad", {"prefill": ids, "decode": ids}, EXPERTS, **{"decode.expert_ids": bad})
    with pytest.raises(FileFormatError, match=r"decode\.expert_ids: not 2 distinct experts of 6"):
        golden.read(str(path))
