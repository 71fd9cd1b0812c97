"""Media in prompts: positions on three axes, what each step takes of them, and how blocks are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastkernels.engine.core.cache import BlockCache, BlockGroup
from fastkernels.engine.core.prefix_cache import Prefixes, SharedGroup
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.scheduler import Scheduler
from fastkernels.engine.core.splice import Span, Splice, positions_of
from fastkernels.nn.media import grid_offsets

FEATURES = 2


def splice(*spans: tuple[int, tuple[int, int, int]], digests: str = "abc") -> Splice:
    """Spans at places, of grids; rows of the nth are n.0, n.1, ..."""
    made, offsets = [], [grid_offsets(*grid) for _, grid in spans]
    for number, ((start, grid), digest) in enumerate(zip(spans, digests)):
        rows = number + torch.arange(int(np.prod(grid))) / 1000
        made.append(Span(start, rows[:, None].expand(-1, FEATURES), digest.encode()))
    return Splice(tuple(made), *positions_of([start for start, _ in spans], offsets))


def request(length: int, media: Splice | None, serial: int = 0) -> Request:
    return Request(serial, list(range(length)), SamplingParams(), seed=0, max_tokens=4, splice=media)


def scheduler(max_tokens: int) -> Scheduler:
    return Scheduler(BlockCache([BlockGroup(5, 64, 60, 4)]), 4, 64, max_tokens)


def test_positions_of_text_images_and_videos():
    media = splice((2, (1, 2, 3)), (9, (2, 1, 2)))
    wanted = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 7, 7],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 6, 6, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 6, 7],
    ]
    np.testing.assert_array_equal(media.positions(0, 13), wanted)
    np.testing.assert_array_equal(media.positions(11, 16)[:, 2:], [[8, 9, 10]] * 3)
    assert media.shift == 8 - 13
    # Temporal steps beyond both sides: text goes on behind all axes.
    assert splice((0, (9, 1, 2))).shift == 9 - 18


@pytest.mark.parametrize("max_tokens", [3, 5, 64])
def test_chunks_take_their_part_of_the_media(max_tokens: int):
    media, plain = splice((2, (1, 2, 3)), (9, (2, 1, 2))), 4
    plans = scheduler(max_tokens)
    plans.add(request(16, media))
    plans.add(request(plain, None, serial=1))
    found: dict[int, dict[int, tuple[list[int], float | None]]] = {0: {}, 1: {}}
    for _ in range(40):
        plan = plans.plan()
        if plan is None or all(len(known) >= size for known, size in zip(found.values(), (16, plain))):
            break
        token = 0
        rows = None if plan.spliced is None else torch.cat([torch.zeros(0, FEATURES), *plan.spliced.rows])
        for serial, start, count in zip(plan.serials_B, plan.starts_B, plan.counts_B):
            for place in range(int(start), int(start + count)):
                if plan.spliced is None:
                    own = [place + (media.shift if serial == 0 else 0)] * 3
                    found[int(serial)][place] = own, None
                else:
                    assert rows is not None
                    at = int(plan.spliced.index_T[token])
                    row = None if at < 0 else float(rows[at, 0])
                    found[int(serial)][place] = plan.spliced.positions_3T[:, token].tolist(), row
                token += 1
        assert plan.spliced is None or not plan.is_decode
    for place in range(16):
        position, row = found[0][place]
        assert position == media.positions(place, place + 1)[:, 0].tolist()
        stands = [rows_ND for _, rows_ND in media.rows(place, place + 1)]
        assert (row is None) == (not stands)
        assert not stands or row == pytest.approx(float(stands[0][0, 0]))
    assert [found[1][place] for place in range(plain)] == [([place] * 3, None) for place in range(plain)]


def test_a_lone_token_of_an_image_is_no_decode_step():
    plans = scheduler(max_tokens=5)
    plans.add(request(6, splice((2, (1, 2, 2)))))
    first, last = plans.plan(), plans.plan()
    assert first is not None
    assert last is not None
    assert last.counts_B.tolist() == [1]
    assert last.samples_B.all()
    assert not last.is_decode
    assert last.spliced is not None
    assert last.spliced.index_T.tolist() == [0]


def test_blocks_are_named_by_what_stands_in_them():
    """Equal ids: prompts share what lies ahead of an image, and what holds the same image."""
    groups = [SharedGroup(5, 64, 60, 4)]
    prefixes = Prefixes(groups)
    plans = Scheduler(BlockCache([*groups]), 4, 64, 64, prefixes)

    def found(media: Splice | None) -> int:
        one = request(20, media)
        return prefixes.find(one, 20).tokens

    plans.add(request(20, splice((5, (1, 2, 2)), (12, (1, 1, 4)))))
    plans.plan()
    assert found(splice((5, (1, 2, 2)), (12, (1, 1, 4)))) == 16
    assert found(splice((5, (1, 2, 2)), (12, (1, 1, 4)), digests="ax")) == 12
    assert found(splice((5, (1, 2, 2)), (12, (1, 1, 4)), digests="xb")) == 4
    assert found(None) == 4


def test_an_aborted_request_names_its_blocks_with_its_media():
    groups = [SharedGroup(5, 64, 60, 4)]
    prefixes = Prefixes(groups)
    plans = Scheduler(BlockCache([*groups]), 4, 64, 64, prefixes)
    one = request(20, splice((5, (1, 2, 2))))
    plans.add(one)
    plans.plan()
    plans.abort(one)
    assert one.splice is None
    assert prefixes.find(request(20, None), 20).tokens == 4
