"""Forecasts of the engine's scheduler that are wrong: no result may depend on them."""

from __future__ import annotations

import numpy as np

from fastkernels.engine.core.ledger import Lengths


class NobodyGrows(Lengths):
    """Always too low, so that a cache with few blocks fills up and rows are given up."""

    def expected(self, left, is_certain):
        return np.full_like(left, -4.0)  # not even the room that rounding and the watermark leave
