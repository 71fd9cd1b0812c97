"""Device side of the rows: ids, block tables, sampling parameters, and the inputs of a step made from them.

    R rows (row 0 is null) · L positions of a row · N table entries · B rows of a step · T tokens
    S sampled rows · P rows of a decode step with its padding · A admitted rows · U uploaded ids

The host sends one packet (packing.py); index operations on the device turn it into input ids, positions,
slots and the `Step`. Where Triton runs, a decode step's are one kernel, and so is the way back
(row_kernels.py): between two kernels of a graph the device rests about a microsecond. Padding is row 0 with
start -1: no cached tokens, slots in the null block, samples into row 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastkernels.engine.core.inputs import Inputs, Parameters, SamplingInputs
from fastkernels.engine.core.outbox import Outbox
from fastkernels.engine.core.packing import Extent, Sections
from fastkernels.engine.core.shaping import Shape
from fastkernels.kernels.policy import interpreting
from fastkernels.nn.context import Step


def in_triton(device: torch.device) -> bool:
    """Whether the two ends of a decode step are Triton kernels here: on CUDA, and in the interpreter."""
    return device.type == "cuda" or interpreting()


class DeviceRows:
    """State of all rows on the device; every change is on the compute stream, in the order of the plans."""

    def __init__(
        self,
        num_rows: int,
        max_len: int,
        block_sizes: list[int],
        device: torch.device,
        states: Sequence[Tensor] = (),
    ) -> None:
        """states: pools [owners, rows, ...] of the layers' states; a row's are zeroed when it is taken."""
        self.device, self.block_sizes, self.states = device, block_sizes, list(states)
        self.outbox = Outbox(num_rows, device)
        self.tokens_RL = torch.zeros((num_rows, max_len), dtype=torch.int32, device=device)
        self.tables_GRN = [
            torch.zeros((num_rows, -(-max_len // size)), dtype=torch.int32, device=device)
            for size in block_sizes
        ]
        self.temperature_R = torch.zeros(num_rows, dtype=torch.float32, device=device)
        self.top_k_R = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self.top_p_R = torch.ones(num_rows, dtype=torch.float32, device=device)
        self.seeds_R = torch.zeros(num_rows, dtype=torch.int64, device=device)
        # Forced: samples are not written.
        self.frozen_R = torch.zeros(num_rows, dtype=torch.bool, device=device)
        # Positions of tokens behind all media, less their places.
        self.shift_R = torch.zeros(num_rows, dtype=torch.int32, device=device)

    @property
    def bytes(self) -> int:
        columns = [
            self.temperature_R,
            self.top_k_R,
            self.top_p_R,
            self.seeds_R,
            self.frozen_R,
            self.shift_R,
        ]
        return sum(t.numel() * t.element_size() for t in (self.tokens_RL, *self.tables_GRN, *columns))

    def inputs(self, sections: Sections, extent: Extent) -> Inputs:
        """Apply a packet of `pack` and build the step."""
        begun_A = self._admit(sections, extent) if extent.num_admitted else None
        self._update_tables(sections)
        rows_B = sections["rows"].long()
        rows_S, targets_S = sections["sampled_rows"].long(), sections["targets"].long()
        if extent.num_tokens == extent.num_rows == extent.num_decodes:
            row_of_T, places_T = rows_B, sections["starts"].long()
        else:
            # Token t of row b sits at starts[b] + t - query_starts[b].
            counts_B = sections["counts"].long()
            shift_B = sections["starts"] - sections["query_starts"][:-1]
            spread = {"dim": 0, "output_size": extent.num_tokens}
            row_of_T = torch.repeat_interleave(rows_B, counts_B, **spread)
            places_T = torch.repeat_interleave(shift_B, counts_B, **spread).long()
            places_T += torch.arange(extent.num_tokens, device=self.device)
        slots_GT = [self._slots(g, row_of_T, places_T) for g in range(len(self.tables_GRN))]
        step = Step(
            query_starts_B1=sections["query_starts"],
            seq_lens_B=sections["seq_lens"],
            rows_B=rows_B,
            block_tables_GBN=self._tables(rows_B, extent.max_seq_len),
            slots_GT=slots_GT,
            num_decodes=extent.num_decodes,
            max_query_len=extent.max_query_len,
            max_seq_len=extent.max_seq_len,
            begun_A=begun_A,
            known=(
                (sections["query_starts"], extent.query_starts_B1),
                (sections["seq_lens"], extent.seq_lens_B),
            ),
        )
        ids_T = self.tokens_RL[row_of_T, places_T].long()
        is_every = len(rows_S) == extent.num_tokens
        is_spliced = "positions" in sections
        return Inputs(
            ids_T,
            sections["positions"].view(3, -1).long() if is_spliced else places_T + self.shift_R[row_of_T],
            step,
            None if is_every else sections["last"].long(),
            rows_S,
            targets_S,
            Shape.of(sections),
            media_T=sections["media"].long() if is_spliced else None,
        )

    def decode_inputs(self, sections: Sections, max_seq_len: int) -> Inputs:
        """Apply a packet of `pack_decode`: no shape depends on anything but the padded number of rows."""
        if not in_triton(self.device):
            return self.decode_inputs_in_torch(sections, max_seq_len)
        from fastkernels.engine.core import row_kernels  # not every system has Triton

        return row_kernels.decode_inputs(self, sections, max_seq_len)

    def decode_inputs_in_torch(self, sections: Sections, max_seq_len: int) -> Inputs:
        self._update_tables(sections)
        rows_P, starts_P = sections["rows"].long(), sections["starts"]
        places_P = starts_P.clamp(min=0).long()
        seq_lens_P = starts_P + 1
        num_rows = len(rows_P)
        step = Step(
            query_starts_B1=torch.arange(num_rows + 1, dtype=torch.int32, device=self.device),
            seq_lens_B=seq_lens_P,
            rows_B=rows_P,
            block_tables_GBN=self._tables(rows_P, max_seq_len),
            slots_GT=[self._slots(g, rows_P, places_P) for g in range(len(self.tables_GRN))],
            num_decodes=num_rows,
            max_query_len=0,
            max_seq_len=max_seq_len,
        )
        return Inputs(
            self.tokens_RL[rows_P, places_P].long(),
            places_P + self.shift_R[rows_P],
            step,
            None,
            rows_P,
            seq_lens_P.long(),
            Shape.of(sections),
            slot=sections["slot"],
        )

    def sampling(self, inputs: Inputs) -> SamplingInputs:
        rows_S = inputs.rows_S
        own = inputs.parameters or Parameters(
            self.temperature_R[rows_S], self.top_k_R[rows_S], self.top_p_R[rows_S], self.seeds_R[rows_S]
        )
        return SamplingInputs(
            *own,
            inputs.targets_S,
            rows_S,
            self.tokens_RL[:, : inputs.step.max_seq_len],
            inputs.shape,
        )

    def write_back(self, inputs: Inputs, ids_S: Tensor) -> None:
        """Put sampled ids where the next step reads them, and into their slot of the outbox if they have one;
        forced rows keep the id that they were given."""
        if not in_triton(self.device):
            return self.write_back_in_torch(inputs, ids_S)
        from fastkernels.engine.core import row_kernels

        return row_kernels.write_back(self, inputs, ids_S)

    def write_back_in_torch(self, inputs: Inputs, ids_S: Tensor) -> None:
        rows_S, targets_S = inputs.rows_S, inputs.targets_S
        kept_S = torch.where(self.frozen_R[rows_S], self.tokens_RL[rows_S, targets_S], ids_S.int())
        self.tokens_RL[rows_S, targets_S] = kept_S
        if inputs.slot is not None:
            self.outbox.ids_KR[int(inputs.slot), : len(ids_S)] = ids_S

    def _admit(self, sections: Sections, extent: Extent) -> Tensor:
        """Take the rows of the requests that begin, [A]."""
        rows_A = sections["admitted.rows"].long()
        # In stream order: behind the last step of the row's former owner, before the first of its new one.
        for state in self.states:
            state.index_fill_(1, rows_A, 0)
        self.temperature_R[rows_A] = sections["admitted.temperature"].view(torch.float32)
        self.top_k_R[rows_A] = sections["admitted.top_k"]
        self.top_p_R[rows_A] = sections["admitted.top_p"].view(torch.float32)
        self.seeds_R[rows_A] = sections["admitted.seeds"].view(torch.int64)
        self.frozen_R[rows_A] = sections["admitted.frozen"].bool()
        self.shift_R[rows_A] = sections["admitted.shift"]
        lengths_A = sections["admitted.lengths"].long()
        spread = {"dim": 0, "output_size": extent.num_uploaded}
        rows_U = torch.repeat_interleave(rows_A, lengths_A, **spread)
        at_U = torch.arange(extent.num_uploaded, device=self.device)
        at_U -= torch.repeat_interleave(sections["admitted.offsets"].long(), lengths_A, **spread)
        self.tokens_RL[rows_U, at_U] = sections["admitted.ids"]
        return rows_A

    def _update_tables(self, sections: Sections) -> None:
        for g, table_RN in enumerate(self.tables_GRN):
            rows = sections[f"table{g}.rows"]
            if len(rows):
                table_RN[rows.long(), sections[f"table{g}.indices"].long()] = sections[f"table{g}.blocks"]

    def _tables(self, rows_B: Tensor, max_seq_len: int) -> list[Tensor]:
        return [
            table_RN[:, : -(-max_seq_len // size)].index_select(0, rows_B)
            for table_RN, size in zip(self.tables_GRN, self.block_sizes)
        ]

    def _slots(self, g: int, row_of_T: Tensor, places_T: Tensor) -> Tensor:
        size = self.block_sizes[g]
        blocks_T = self.tables_GRN[g][row_of_T, places_T // size]
        return blocks_T.long() * size + places_T % size
