"""A case: one concrete use of a task."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from fastkernels.records.base import DType, Record, Size, Skew, TokenPhase


class View(Record):
    """How a model hands an input over that is not packed: as a part of some tensor, perhaps beside others.

    `storage`: the name of the first input that lies in the same memory, of `size` elements. `strides` and
    `offset` count elements.
    """

    storage: str
    size: int
    strides: tuple[int, ...]
    offset: int = 0


class TensorSpec(Record):
    """A tensor argument. `draw` says where its values come from:

    normal        floats of the iteration's distribution (what activations, parameters and caches hold)
    ids           indices, uniform in [0, high); the first and the last always occur
    starts.NAME   where the parts of argument NAME begin, bags or rows, and the last one ends; their lengths
                  are log-normal with a spread of `high`, so some are empty
    integers      uniform in [low, high), as they fall: seeds, which no two calls may have in common
    uniform       floats, uniform in [low, high)
    routing.FIELD ids, order or starts: which experts the tokens choose (loader/routing.py); logits: what
                  a router gave for them, in cases that replay a golden folder
    routed        as normal, with a direction in each row that a router recognises
    router        the gate that recognises it
    step.FIELD    the batch's positions, query_starts, seq_lens, rows, begun, block_tables, slots or grids
                  (loader/inputs.py); key_starts and places, where its keys are packed
    cache         a paged pool [blocks, block_size, ...] of the batch's size, values as normal
    state         a pool [rows, ...] of states of the batch's size, values as normal
    kept          the same after the layer has stored what a request begins with
    normed        as normal; in float16 up to where squares and sums of its values overflow
    splats.FIELD  of a cloud of Gaussians and its cameras, which fit each other (loader/splats.py)
    clouds.FIELD  of clouds of voxels, their orders and tables, which fit each other (loader/clouds.py)
    rays.FIELD    of cameras in a scene, their rays and its occupied cells, which fit each other
                  (loader/rays.py)
    occupancy     bits of cells, of a parameter (nn/occupancy.py)
    map           as normed, but of `extreme` blocks of channels of an image [B, Y, X, C] have one scale
    by_place      a bias of scores [..., S, S] by the places of two tokens in rows of up to S tokens
    replicated    as normal, the same on all ranks of a group
    attended      as normal, with outliers and scales of rows that a softmax or a state can hold
    signed        as attended, each row with a sign of its own: tokens have no offset in common
    unit          as attended, each row over its length
    log_decay     logarithms of decays, at most 0: a log-sigmoid of what normal gives
    """

    shape: tuple[int, ...]
    dtype: DType
    draw: str = "normal"
    low: float = 0
    high: float = 1
    row: int | None = None  # elements of what a distribution takes for a row; None: the last dimension
    view: View | None = None  # some calls get it so, others packed (loader/views.py); None: always packed


class Batch(Record):
    """The requests behind a call, as runs `(count, query_len, seq_len)`; seq_len includes the query.

    Decode rows (query_len 1, seq_len > 1) come first. Block tables are shuffled: blocks of a row are never
    contiguous. A batch of images has `grids` instead, runs `(count, rows, columns)` of patches: an image is
    a row whose tokens are all there, behind `text` tokens of its prompt. Images of one size that are not cut
    into patches are `images`, one `(count, height, width)` in pixels.
    """

    rows: tuple[tuple[int, int, int], ...] = ()
    block_size: int = 16
    grids: tuple[tuple[int, int, int], ...] = ()
    text: int = 0
    images: tuple[int, int, int] | None = None

    @model_validator(mode="before")
    @classmethod
    def _images_are_rows(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("grids") and not data.get("rows"):
            text = data.get("text", 0)
            return {**data, "rows": [(n, text + h * w, text + h * w) for n, h, w in data["grids"]]}
        if isinstance(data, dict) and data.get("images") and not data.get("rows"):
            count, height, width = data["images"]
            return {**data, "rows": [(count, height * width, height * width)]}
        return data

    @model_validator(mode="after")
    def _ordered(self) -> Batch:
        if not self.rows or any(min(grid) < 1 for grid in self.grids):
            raise ValueError("a batch needs rows, or grids of at least one patch, or images")
        lengths = [(count, self.text + h * w) for count, h, w in self.grids]
        if self.grids and self.rows != tuple((count, length, length) for count, length in lengths):
            raise ValueError("rows differ from what the grids give")
        for count, query_len, seq_len in self.rows:
            if count < 1 or not 1 <= query_len <= seq_len:
                raise ValueError(
                    f"row run ({count}, {query_len}, {seq_len}): need count >= 1, 1 <= query <= seq"
                )
        decode = [query == 1 and seq > 1 for _, query, seq in self.rows]
        if decode != sorted(decode, reverse=True):
            raise ValueError("decode rows (query_len 1) must come before prefill rows")
        return self

    @property
    def query_lens(self) -> list[int]:
        return [query for count, query, _ in self.rows for _ in range(count)]

    @property
    def seq_lens(self) -> list[int]:
        return [seq for count, _, seq in self.rows for _ in range(count)]

    @property
    def num_tokens(self) -> int:
        return sum(count * query for count, query, _ in self.rows)

    @property
    def num_decodes(self) -> int:
        return sum(count for count, query, seq in self.rows if query == 1 and seq > 1)


class Golden(Record):
    """Values that a model really had, which a case replays: the folder that `fk capture` wrote, and of which
    tokens."""

    folder: str
    phase: TokenPhase


class Routing(Record):
    """How the tokens of a case choose experts: each takes `top_k` different ones of `experts`.

    uniform       all experts alike
    zipf          the i-th favourite has 1/i of the popularity of the first
    captured      as the tokens of a golden folder did
    """

    top_k: int
    experts: int
    skew: Skew | Literal["captured"] = "uniform"
    golden: Golden | None = None

    @model_validator(mode="after")
    def _source(self) -> Routing:
        if (self.skew == "captured") != (self.golden is not None):
            raise ValueError("captured routing, and no other, comes from a golden folder")
        return self


REGISTRY = "registry"  # stands for an architecture in cases that none makes


class Provenance(Record):
    """Who makes this call: `llama` in configuration `8b`, phase `decode`. `REGISTRY`: no architecture does,
    the registry lists it with the task."""

    architecture: str
    config: str
    phase: str  # the first word of the step's name, or `held-out`


class Case(Record):
    """init arguments + input specification + provenance + weight. `id` is unique within its task."""

    id: str
    task: str  # L1/rms_norm
    variant: str = "default"
    size: Size
    dtype: DType
    init: dict[str, Any]
    inputs: dict[str, TensorSpec | bool | int | float | str | tuple[int, ...] | list[list[int]] | None]
    batch: Batch | None = None
    routing: Routing | None = None
    provenance: Provenance
    calls: int = 1  # calls of this shape in one step of the model
    timed: bool = True  # held-out shapes are checked, not timed
    ranks: int = 1  # that make the call together, each with tensors of its own
