"""How far an output is from the baseline's: 0 the same, 1 unrelated, by the names that architectures choose.

    centred_cosine     1 - cos(a - m, b - m), m the mean of a over the samples: at least two
    channel_cosine     1 - cos(a - m, b - m), m the mean of a over all but the last dimension
    worst_row_cosine   1 - cos of the rows (last dimension) that are furthest apart; rows of zeros are alike
    relative_l2        |a - b| / |a|
    centred_l2         |a - b| / |a - m| by root mean squares, m the mean of a over all samples, |a - m| too
    rms_error          e / (e + half),  e = sqrt(mean (a - b)^2): of values whose unit is known
    psnr               (60 - P) / 40,  P = 10 log10(max|a|^2 / mean (a - b)^2): 60 dB and above are the same
    total_variation    sum |softmax(a) - softmax(b)| / 2 over the last dimension, its mean over rows
    kendall_tau        1 - tau_b of the orders in which a and b put the last dimension, its mean over rows
    disagreement       the share of places whose ids differ
    top_k_overlap      1 - |A & B| / max(|A|, |B|), the `k` largest above 0 of a row; its mean over rows
    rmsd               sqrt(mean |a - R b|^2 / mean |a|^2) of centred points [N, 3], R the best rotation
    mel_cosine         channel_cosine of the log-mel spectrograms of waveforms [N]
    detections         max(1 - F1, 1 - mean IoU, mean |score - score'|), see below

Each is divided by its `scale`, where one is given (the d that counts as unrelated), and clipped to [0, 1]. An
output that is not finite or has another shape is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fastkernels.errors import NotFoundError, UsageError

BEST_DB, WORST_DB = 60.0, 20.0  # of a PSNR
MEL_BANDS, MEL_WINDOW, MEL_HOP, MEL_FLOOR = 80, 1024, 256, 1e-5
MATCHED_FROM = 0.5  # IoU of two boxes that count as one

Outputs = Sequence[np.ndarray]
Function = Callable[..., list[float]]
TABLE: dict[str, Function] = {}


def distances(
    name: str, expected: Outputs, found: Outputs, *, scale: float = 1.0, **parameters: Any
) -> list[float]:
    """d of each sample by the distance of this name. NotFoundError, UsageError for its parameters; ValueError
    for another number of samples."""
    if not 0 < scale <= 1:
        raise UsageError(f"distance {name}: a scale must be above 0 and at most 1, not {scale}")
    if name not in TABLE:
        raise NotFoundError("distance", name, TABLE, "src/fastkernels/score/distances.py")
    if len(expected) != len(found):
        raise ValueError(f"{len(found)} outputs against {len(expected)}")
    try:
        return [min(d / scale, 1.0) for d in TABLE[name](expected, found, **parameters)]
    except TypeError as error:
        raise UsageError(f"distance {name}: {error}") from error


def largest(
    chosen: Sequence[tuple[str, str, dict[str, Any]]],
    expected: Sequence[Mapping[str, np.ndarray]],
    found: Sequence[Mapping[str, np.ndarray]],
) -> list[float]:
    """d of each sample over its outputs; chosen: (output, distance, parameters)."""
    by_distance = [
        distances(name, [one[output] for one in expected], [one[output] for one in found], **parameters)
        for output, name, parameters in chosen
    ]
    return [max(of_sample) for of_sample in zip(*by_distance, strict=True)]


def _each(function: Callable[..., float]) -> Callable[..., float]:
    """Enter a distance of two arrays of one shape, both finite, in float64."""

    def of_samples(expected: Outputs, found: Outputs, **parameters: Any) -> list[float]:
        return [_clipped(function, a, b, parameters) if a.shape == b.shape else 1.0
                for a, b in zip(expected, found)]  # fmt: skip

    TABLE[function.__name__] = of_samples
    return function


def _clipped(
    function: Callable[..., float], a: np.ndarray, b: np.ndarray, parameters: Mapping[str, Any]
) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 1.0
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        d = float(function(a, b, **parameters))
    return min(max(d, 0.0), 1.0) if np.isfinite(d) else 1.0


# ---------------------------------------------------------------- directions


def centred_cosine(expected: Outputs, found: Outputs) -> list[float]:
    """Features of unrelated inputs are alike before the mean is taken off. No direction is 1. ValueError with
    fewer than two samples: their mean would be all there is."""
    if len(expected) < 2:
        raise ValueError(f"centred_cosine: {len(expected)} samples, expected at least two")
    centre = np.mean(np.asarray(expected, dtype=np.float64), axis=0)

    def centred(a: np.ndarray, b: np.ndarray) -> float:
        return 1 - _cosine(a - centre, b - centre)

    return [_clipped(centred, a, b, {}) if a.shape == b.shape else 1.0 for a, b in zip(expected, found)]


TABLE["centred_cosine"] = centred_cosine


@_each
def channel_cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Images without structure are alike before the means are taken off. No direction is 1."""
    centre_C = a.mean(axis=tuple(range(a.ndim - 1)))
    return 1 - _cosine(a - centre_C, b - centre_C)


@_each
def worst_row_cosine(a: np.ndarray, b: np.ndarray) -> float:
    a_RD, b_RD = (x.reshape(-1, x.shape[-1]) for x in (a, b))
    lengths_R = np.linalg.norm(a_RD, axis=1) * np.linalg.norm(b_RD, axis=1)
    are_alike_R = ~a_RD.any(axis=1) & ~b_RD.any(axis=1)
    cosine_R = np.divide((a_RD * b_RD).sum(axis=1), lengths_R, out=np.zeros(len(a_RD)), where=lengths_R > 0)
    return 1 - float(np.where(are_alike_R, 1.0, cosine_R).min(initial=1.0))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


# ---------------------------------------------------------------- sizes


@_each
def relative_l2(a: np.ndarray, b: np.ndarray) -> float:
    error = np.linalg.norm(a - b)
    return float(error / np.linalg.norm(a)) if error else 0.0


def centred_l2(expected: Outputs, found: Outputs) -> list[float]:
    """Logits that are almost constant differ in what is left without their mean; one value alone has no such
    part, so all samples have one."""
    values = np.concatenate([np.ravel(a).astype(np.float64) for a in expected])
    spread = np.sqrt(np.square(values - values.mean()).mean())

    def of_spread(a: np.ndarray, b: np.ndarray) -> float:
        error = np.sqrt(np.square(a - b).mean())
        return float(error / spread) if error else 0.0

    return [_clipped(of_spread, a, b, {}) if a.shape == b.shape else 1.0 for a, b in zip(expected, found)]


TABLE["centred_l2"] = centred_l2


@_each
def rms_error(a: np.ndarray, b: np.ndarray, *, half: float) -> float:
    error = np.sqrt(np.square(a - b).mean()) if a.size else 0.0
    return float(error / (error + half))


@_each
def psnr(a: np.ndarray, b: np.ndarray) -> float:
    mean_square = float(np.square(a - b).mean())
    if not mean_square:
        return 0.0
    decibels = 10 * np.log10(float(np.abs(a).max()) ** 2 / mean_square)
    return (BEST_DB - decibels) / (BEST_DB - WORST_DB)


@_each
def rmsd(a: np.ndarray, b: np.ndarray) -> float:
    """Reflections are no rotations. 1 is as far as the points are from their middle."""
    a_N3, b_N3 = a - a.mean(axis=0), b - b.mean(axis=0)
    u_33, scale_3, v_33 = np.linalg.svd(b_N3.T @ a_N3)
    scale_3[-1] *= np.sign(np.linalg.det(u_33 @ v_33))
    squares = np.square(a_N3).sum() + np.square(b_N3).sum() - 2 * scale_3.sum()
    return float(np.sqrt(max(squares, 0.0) / np.square(a_N3).sum())) if a_N3.any() else float(b_N3.any())


# ---------------------------------------------------------------- scores and their order


@_each
def total_variation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(_softmax(a) - _softmax(b)).sum(axis=-1).mean() / 2)


@_each
def kendall_tau(a: np.ndarray, b: np.ndarray) -> float:
    """Ties count as in tau_b. A row in which one side has no order and the other has one is 1."""
    return 1 - float(np.mean([_tau(*rows) for rows in _rows(a, b)]))


@_each
def disagreement(a: np.ndarray, b: np.ndarray) -> float:
    return float((a != b).mean()) if a.size else 0.0


@_each
def top_k_overlap(a: np.ndarray, b: np.ndarray, *, k: int) -> float:
    return 1 - float(np.mean([_overlap(_top(one, k), _top(other, k)) for one, other in _rows(a, b)]))


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _rows(a: np.ndarray, b: np.ndarray) -> zip[tuple[np.ndarray, np.ndarray]]:
    return zip(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]))


def _tau(a_N: np.ndarray, b_N: np.ndarray) -> float:
    order_a, order_b = (np.sign(x[:, None] - x[None, :]) for x in (a_N, b_N))
    pairs_a, pairs_b = np.abs(order_a).sum(), np.abs(order_b).sum()
    if not (pairs_a and pairs_b):
        return float(pairs_a == pairs_b)
    return float((order_a * order_b).sum() / np.sqrt(pairs_a * pairs_b))


def _top(row_V: np.ndarray, k: int) -> set[int]:
    best = np.argsort(-row_V, kind="stable")[:k]
    return set(best[row_V[best] > 0].tolist())


def _overlap(a: set[int], b: set[int]) -> float:
    return len(a & b) / max(len(a), len(b)) if a or b else 1.0


# ---------------------------------------------------------------- sound


@_each
def mel_cosine(a: np.ndarray, b: np.ndarray, *, sampling_rate: int) -> float:
    """80 bands from 0 to half the rate, frames of 1024 samples 256 apart. No direction is 1."""
    return channel_cosine(log_mel(a, sampling_rate), log_mel(b, sampling_rate))


def log_mel(audio_N: np.ndarray, sampling_rate: int) -> np.ndarray:
    """[frames, 80]: natural logarithms of magnitudes, at least those of 1e-5."""
    missing = max(0, MEL_WINDOW - len(audio_N))
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(audio_N, (0, missing)), MEL_WINDOW)[::MEL_HOP]
    magnitude_FK = np.abs(np.fft.rfft(frames * np.hanning(MEL_WINDOW)))
    return np.log(np.maximum(magnitude_FK @ _mel_filters(sampling_rate), MEL_FLOOR))


def _mel_filters(sampling_rate: int) -> np.ndarray:
    """[frequencies, bands] of triangles whose corners are even on the mel scale, 2595 log10(1 + f / 700)."""
    top = 2595 * np.log10(1 + sampling_rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, MEL_BANDS + 2) / 2595) - 1)
    hz_K1 = np.fft.rfftfreq(MEL_WINDOW, 1 / sampling_rate)[:, None]
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    return np.minimum((hz_K1 - low) / (middle - low), (high - hz_K1) / (high - middle)).clip(min=0)


# ---------------------------------------------------------------- boxes


def detections(expected: Outputs, found: Outputs) -> list[float]:
    """d of images whose detections are rows (left, top, right, bottom, score, label) [N, 6]; rows of a label
    below 0 are free places. Means are over matches; two images without a box are the same.

    Matches are found greedily by falling score, each with the free box of its label that overlaps most, by an
    IoU of at least 0.5. Precision and recall are shares of scores.
    """
    return [_of_boxes(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(expected, found)]


TABLE["detections"] = detections


def _of_boxes(a: np.ndarray, b: np.ndarray) -> float:
    if b.ndim != 2 or b.shape[1] != a.shape[1]:
        return 1.0
    a_NV, b_NV = a[~(a[:, 5] < 0)], b[~(b[:, 5] < 0)]
    if not len(a_NV) or not len(b_NV):
        return float(len(a_NV) != len(b_NV))
    if not (np.isfinite(b_NV).all() and (b_NV[:, 4] > 0).all()):
        return 1.0
    pairs = _matched(a_NV, b_NV)
    if not pairs:
        return 1.0
    of_a, of_b, overlaps = (np.array(column) for column in zip(*pairs))
    recall, precision = a_NV[of_a, 4].sum() / a_NV[:, 4].sum(), b_NV[of_b, 4].sum() / b_NV[:, 4].sum()
    f1 = 2 * precision * recall / (precision + recall)
    score_difference = np.abs(a_NV[of_a, 4] - b_NV[of_b, 4]).mean()
    return min(max(float(max(1 - f1, 1 - overlaps.mean(), score_difference)), 0.0), 1.0)


def _matched(a_NV: np.ndarray, b_NV: np.ndarray) -> list[tuple[int, int, float]]:
    """(row of a, row of b, their IoU) of each match."""
    iou_NM = np.where(a_NV[:, None, 5] == b_NV[None, :, 5], _overlaps(a_NV[:, :4], b_NV[:, :4]), 0.0)
    pairs = []
    for j in np.argsort(-b_NV[:, 4], kind="stable"):
        i = int(iou_NM[:, j].argmax())
        if iou_NM[i, j] >= MATCHED_FROM:
            pairs.append((i, int(j), float(iou_NM[i, j])))
            iou_NM[i] = 0.0
    return pairs


def _overlaps(a_N4: np.ndarray, b_M4: np.ndarray) -> np.ndarray:
    """[N, M]: intersection over union. Boxes without extent overlap with nothing."""
    low_NM2 = np.maximum(a_N4[:, None, :2], b_M4[None, :, :2])
    high_NM2 = np.minimum(a_N4[:, None, 2:], b_M4[None, :, 2:])
    shared_NM = (high_NM2 - low_NM2).clip(min=0).prod(-1)
    area_N, area_M = ((box[:, 2:] - box[:, :2]).clip(min=0).prod(-1) for box in (a_N4, b_M4))
    union_NM = area_N[:, None] + area_M[None] - shared_NM
    return np.divide(shared_NM, union_NM, out=np.zeros_like(shared_NM), where=union_NM > 0)
