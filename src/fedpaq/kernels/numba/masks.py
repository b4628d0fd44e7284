"""Masks: 64 comparisons as the bits of one integer, for loops that look at few of many elements.

Compilers turn a loop over comparisons into vector code, but not into a mask: so that one step is written in
LLVM's own terms, which it turns into what a processor has. Twin: ``np.flatnonzero``.
"""

from llvmlite import ir
from numba import types, uint64
from numba.extending import intrinsic

WIDTH = 64
NONE, LAST = uint64(0), uint64(1 << 63)


def load_lanes(context, builder, kind, array, start):
    """Return array[start : start + 64] as one vector, wherever it lies."""
    data = context.make_array(kind)(context, builder, array).data
    lanes = ir.VectorType(ir.IntType(kind.dtype.bitwidth), WIDTH)
    place = builder.bitcast(builder.gep(data, [start]), lanes.as_pointer())
    return builder.load(place, align=kind.dtype.bitwidth // 8)


@intrinsic
def not_zero(typing_context, array, start):
    """Return bit i set where array[start + i] is not zero, i = 0..63; the array is contiguous."""

    def generate(context, builder, signature, arguments):
        values = load_lanes(context, builder, signature.args[0], *arguments)
        mask = builder.icmp_unsigned("!=", values, ir.Constant(values.type, [0] * WIDTH))
        return builder.bitcast(mask, ir.IntType(WIDTH))

    return types.uint64(array, types.int64), generate


@intrinsic
def lowest_bit(typing_context, mask):
    """Return the number of the lowest bit set; the mask is not zero."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def count_bits(typing_context, mask):
    """Return how many bits are set."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate
