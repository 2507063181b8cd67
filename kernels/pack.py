"""Gather tensors into a flat bucket, and scatter a bucket back: the copy-in and copy-out of tensor fusion.

    pack:    tensors --cast, scale--> bucket        unpack:  bucket --cast, scale--> tensors

Bytes moved per element: the tensor's itemsize plus the bucket's (fp32 to fp32 8, fp32 to bf16 6).
Where tensors already *are* views into the bucket (``PackPlan.views``) neither is needed. On a GPU each of the two is
one launch, whatever the number of tensors. The table of a launch is made with the bound call: bind once, call often.
"""

from collections.abc import Callable, Sequence

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dispatch import kernels_for
from dear_mpi.kernels.pack_plan import PackPlan

__all__ = ["packer", "unpacker"]


def packer(tensors: Sequence[Array], bucket: Array, plan: PackPlan, *, scale: float = 1.0) -> Callable[[], object]:
    """A bound call that writes every tensor, times ``scale``, at its place in ``bucket``; padding is not touched.

    Args:
        tensors: arrays of the plan's shapes, of any floating types; on a GPU they must be contiguous.
        bucket: flat array of ``plan.padded`` elements of ``plan.dtype``.
        scale: multiplied in fp32 (in fp64 where one side is fp64) before the cast.

    Raises:
        ValueError: a shape differs from the plan's.
    """
    plan.check(tensors)
    call: Callable[[], object] = kernels_for(bucket).packer(tensors, plan.views(bucket), scale)
    return call


def unpacker(bucket: Array, tensors: Sequence[Array], plan: PackPlan, *, scale: float = 1.0) -> Callable[[], object]:
    """A bound call that writes every tensor from its place in ``bucket``, times ``scale``: the mirror image."""
    plan.check(tensors)
    call: Callable[[], object] = kernels_for(bucket).unpacker(plan.views(bucket), tensors, scale)
    return call
