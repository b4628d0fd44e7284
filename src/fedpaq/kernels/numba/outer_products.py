"""Outer products: W <- W - eta D^T A for few rows of A and D, on vectors of 16 numbers, in LLVM's own terms.

BLAS first rearranges its factors and reads W though it is zero; with ten rows that takes as long as the
multiplications. Here a block of W stays in registers while the rows pass by. Every number is the sum over the rows in
their order, each product added without rounding it first, then times -eta and added to W in the same way: as
OpenBLAS does it on processors with AVX-512, to the bit.
"""

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fedpaq.kernels.numba.blas import copy

LANES = 16
_HAS_WIDE_REGISTERS = llvmlite.binding.get_host_cpu_features().get("avx512f", False)
UNITS, REGISTERS = (5, 4) if _HAS_WIDE_REGISTERS else (4, 1)  # of a block: as many as a processor can hold
PIECE = REGISTERS * LANES  # columns of a block
COLUMNS = 256  # whose rows of A stay in the nearest cache while all units pass by
_FLOAT, _INT = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)


def _filled(builder, number):
    """Return a register full of one number."""
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    nowhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, first, nowhere)


def _generator(units, registers):
    def generate(context, builder, signature, arguments):
        weight, source, delta = (
            context.make_array(kind)(context, builder, array).data
            for kind, array in zip(signature.args[:3], arguments[:3], strict=True)
        )
        before, after, rows, start, column, unit, scale, fresh = arguments[3:]
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        )

        def place(base, offset):
            return builder.bitcast(builder.gep(base, [offset]), _VECTOR.as_pointer())

        steps = [ir.Constant(_INT, LANES * number) for number in range(registers)]
        entry, loop, leave = builder.block, builder.append_basic_block("rows"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        row = builder.phi(_INT)
        row.add_incoming(ir.Constant(_INT, 0), entry)
        sums = [[builder.phi(_VECTOR) for _ in steps] for _ in range(units)]
        first = builder.add(builder.mul(row, ir.Constant(_INT, COLUMNS)), column)
        inputs = [builder.load(place(source, builder.add(first, step)), align=4) for step in steps]
        slopes = builder.gep(delta, [builder.add(builder.mul(row, after), unit)])
        for number, line in enumerate(sums):
            slope = _filled(builder, builder.load(builder.gep(slopes, [ir.Constant(_INT, number)])))
            for at, values in enumerate(inputs):
                line[at].add_incoming(_ZERO, entry)
                more = builder.call(fma, [slope, values, line[at]])
                line[at].add_incoming(more, loop)
                line[at] = more
        next_row = builder.add(row, ir.Constant(_INT, 1))
        row.add_incoming(next_row, loop)
        builder.cbranch(builder.icmp_signed("<", next_row, rows), loop, leave)
        builder.position_at_end(leave)
        factor = _filled(builder, scale)
        for number, line in enumerate(sums):
            first = builder.mul(builder.add(unit, ir.Constant(_INT, number)), before)
            first = builder.add(first, builder.add(start, column))
            for total, step in zip(line, steps, strict=True):
                address = place(weight, builder.add(first, step))
                old = cgutils.alloca_once_value(builder, _ZERO)
                with builder.if_then(builder.not_(fresh)):
                    builder.store(builder.load(address, align=4), old)
                builder.store(builder.call(fma, [factor, total, builder.load(old)]), address, align=4)
        return context.get_dummy_value()

    return generate


def _block(units, registers):
    """Return how a block of W is made, from unit ``unit`` and column ``start + column`` on."""

    @intrinsic
    def add(typing_context, weight, source, delta, before, after, rows, start, column, unit, scale, fresh):
        signature = types.void(weight, source, delta, *[types.int64] * 6, types.float32, types.boolean)
        return signature, _generator(units, registers)

    return add


_large, _narrow, _flat, _small = (_block(*size) for size in ((UNITS, REGISTERS), (UNITS, 1), (1, REGISTERS), (1, 1)))


@njit
def add_outer(weight, source, delta, before, after, rows, scale, fresh, room):
    """W <- W + scale D^T A, or without W where it is ``fresh``: nothing was there. ``before`` is a multiple of LANES.

    A is (rows, before), D is (rows, after), W is (after, before); ``room`` is for rows * COLUMNS numbers.
    """
    whole = after // UNITS * UNITS
    for start in range(0, before, COLUMNS):
        columns = min(COLUMNS, before - start)
        for row in range(rows):  # rows that lie a power of two apart would drive each other out of the cache
            copy(source[row * before + start :], room[row * COLUMNS : row * COLUMNS + columns])
        most = columns // PIECE * PIECE
        for unit in range(0, whole, UNITS):
            for column in range(0, most, PIECE):
                _large(weight, room, delta, before, after, rows, start, column, unit, scale, fresh)
            for column in range(most, columns, LANES):
                _narrow(weight, room, delta, before, after, rows, start, column, unit, scale, fresh)
        for unit in range(whole, after):
            for column in range(0, most, PIECE):
                _flat(weight, room, delta, before, after, rows, start, column, unit, scale, fresh)
            for column in range(most, columns, LANES):
                _small(weight, room, delta, before, after, rows, start, column, unit, scale, fresh)
