"""Cells: sums of x^2 and |x| over 64 coordinates, added in halves (64, 32, ... 1), in LLVM's own terms.

Compilers keep the 64 doubles in memory between two halves; here they stay in registers. Twin:
``fedpaq.quantizers.rotated.rounding.sum_cells``.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

CELL = 64
_LANES = 16
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), _LANES)
_INTEGER = ir.IntType(32)
_BITS = ir.VectorType(_INTEGER, _LANES)


def _halved(builder, vectors):
    """Add vectors in halves, then the lanes of the last one."""
    while len(vectors) > 1:
        middle = len(vectors) // 2
        vectors = [builder.fadd(*pair) for pair in zip(vectors[:middle], vectors[middle:], strict=True)]
    (vector,) = vectors
    width = _LANES // 2
    while width:
        lanes = ir.VectorType(_INTEGER, width)
        low, high = ir.Constant(lanes, list(range(width))), ir.Constant(lanes, list(range(width, 2 * width)))
        vector = builder.fadd(*(builder.shuffle_vector(vector, vector, half) for half in (low, high)))
        width //= 2
    return builder.extract_element(vector, ir.Constant(_INTEGER, 0))


@intrinsic
def sum_cell(typing_context, array, start):
    """Return the sums of x^2 and |x| over array[start : start + 64]; the array is contiguous float32."""

    def generate(context, builder, signature, arguments):
        values, start = arguments
        data = context.make_array(signature.args[0])(context, builder, values).data
        unsigned = ir.Constant(_BITS, [0x7FFFFFFF] * _LANES)
        magnitudes = []
        for run in range(0, CELL, _LANES):
            place = builder.gep(data, [builder.add(start, ir.Constant(start.type, run))])
            found = builder.and_(builder.load(builder.bitcast(place, _BITS.as_pointer()), align=4), unsigned)
            magnitudes.append(builder.fpext(builder.bitcast(found, _FLOATS), _DOUBLES))
        squares = [builder.fmul(each, each) for each in magnitudes]
        return context.make_tuple(
            builder, signature.return_type, [_halved(builder, squares), _halved(builder, magnitudes)]
        )

    return types.UniTuple(types.float64, 2)(array, types.int64), generate
