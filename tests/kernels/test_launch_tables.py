"""The arithmetic of a launch: every element of every tensor belongs to one block, and blocks keep alignment."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.launch_tables import BLOCK, COMBINE_PART, PART, block_table, grid_of, row_table


@given(counts=st.lists(st.integers(0, 3000), max_size=40), part=st.sampled_from([8, 64, 1024]))
def test_blocks_cover_every_element_once(counts, part):
    seen = [np.zeros(count, int) for count in counts]
    for start, tensor, count in block_table(counts, part).tolist():
        assert start % 8 == 0
        assert 0 < count <= part
        seen[tensor][start : start + count] += 1
        assert start + count <= counts[tensor]
    assert all((times == 1).all() for times in seen)


def test_a_tensor_of_more_than_2_to_the_31_elements():
    count = (1 << 31) + 5
    table = block_table([3, count])
    assert len(table) == 1 + grid_of(count)
    assert table[-1].tolist() == (count - 5, 1, 5)
    assert table.nbytes == 16 * len(table)


def test_structs_are_those_of_the_kernels():
    """Their layout in C: ``Block`` and ``Tensor``."""
    assert [BLOCK.fields[name][1] for name in ("start", "tensor", "count")] == [0, 8, 12]
    arrays = [np.zeros(4, dtype) for dtype in DTYPES.values()]
    rows = row_table(arrays, arrays[::-1])
    assert rows.tolist() == [
        [one.ctypes.data, other.ctypes.data, kind]
        for kind, (one, other) in enumerate(zip(arrays, arrays[::-1], strict=True))
    ]


def test_parts_keep_vectors_whole():
    assert PART % 8 == COMBINE_PART % 16 == 0


@pytest.mark.parametrize("array", [np.zeros(4, np.int32), np.zeros(8)[::2]], ids=["integers", "gaps"])
def test_what_a_kernel_cannot_take_is_refused(array):
    with pytest.raises(ValueError, match=r"type of a tensor 'int32' is unknown|must be contiguous"):
        row_table([array])
