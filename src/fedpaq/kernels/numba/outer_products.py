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
SIZES = ((REGISTERS, LANES), (1, LANES), (1, 1))  # registers and lanes of blocks: most, and what is left over
COLUMNS = 256  # whose rows of A stay in the nearest cache while all units pass by
_FLOAT, _INT = ir.FloatType(), ir.IntType(64)


def _vector(lanes):
    return _FLOAT if lanes == 1 else ir.VectorType(_FLOAT, lanes)


def _spread(builder, number, lanes):
    """Return a register full of one number."""
    if lanes == 1:
        return number
    kind = _vector(lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    nowhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(first, first, nowhere)


def _generator(units, registers, lanes, fresh):
    kind = _vector(lanes)
    zero = ir.Constant(kind, [0.0] * lanes if lanes > 1 else 0.0)

    def generate(context, builder, signature, arguments):
        arrays, numbers = arguments[:3], arguments[3:]
        weight, source, delta = (
            context.make_array(type_)(context, builder, array).data
            for type_, array in zip(signature.args, arrays, strict=False)
        )
        before, after, rows, start, column, unit, scale = numbers
        name = "llvm.fma.f32" if lanes == 1 else f"llvm.fma.v{lanes}f32"
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)

        def place(base, offset):
            address = builder.gep(base, [offset])
            return address if lanes == 1 else builder.bitcast(address, kind.as_pointer())

        steps = [ir.Constant(_INT, lanes * number) for number in range(registers)]
        entry, loop, leave = builder.block, builder.append_basic_block("rows"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        row = builder.phi(_INT)
        row.add_incoming(ir.Constant(_INT, 0), entry)
        sums = [[builder.phi(kind) for _ in steps] for _ in range(units)]
        from_row = builder.add(builder.mul(row, ir.Constant(_INT, COLUMNS)), column)
        inputs = [builder.load(place(source, builder.add(from_row, step)), align=4) for step in steps]
        slopes = builder.gep(delta, [builder.add(builder.mul(row, after), unit)])
        next_row = builder.add(row, ir.Constant(_INT, 1))
        for number, line in enumerate(sums):
            slope = _spread(builder, builder.load(builder.gep(slopes, [ir.Constant(_INT, number)])), lanes)
            for total, values in zip(line, inputs, strict=True):
                total.add_incoming(zero, entry)
                total.add_incoming(builder.call(fma, [slope, values, total]), loop)
        row.add_incoming(next_row, loop)
        builder.cbranch(builder.icmp_signed("<", next_row, rows), loop, leave)
        builder.position_at_end(leave)
        factor = _spread(builder, scale, lanes)
        for number, line in enumerate(sums):
            line_start = builder.mul(builder.add(unit, ir.Constant(_INT, number)), before)
            first = builder.add(line_start, builder.add(start, column))
            for total, step in zip(line, steps, strict=True):
                address = place(weight, builder.add(first, step))
                old = zero if fresh else builder.load(address, align=4)
                whole = total.incomings[1][0]  # with the last row
                builder.store(builder.call(fma, [factor, whole, old]), address, align=4)
        return context.get_dummy_value()

    return generate


def _block(units, registers, lanes, fresh):
    """Return how a block of W is made, from unit ``unit`` and column ``start + column`` on."""

    @intrinsic
    def add(typing_context, weight, source, delta, before, after, rows, start, column, unit, scale):
        return (
            types.void(weight, source, delta, *[types.int64] * 6, types.float32),
            _generator(units, registers, lanes, fresh),
        )

    return add


def _adder(fresh):
    """Return the sum over all of W; where it is ``fresh`` there was nothing before."""
    many = [_block(UNITS, registers, lanes, fresh) for registers, lanes in SIZES]
    single = [_block(1, registers, lanes, fresh) for registers, lanes in SIZES]
    (large, middle, small), (long, short, least) = many, single

    @njit
    def add(weight, source, delta, before, after, rows, scale, room):
        whole = after // UNITS * UNITS
        for start in range(0, before, COLUMNS):
            columns = min(COLUMNS, before - start)
            for row in range(rows):
                copy(source[row * before + start :], room[row * COLUMNS : row * COLUMNS + columns])
            first, second = columns // PIECE * PIECE, columns // LANES * LANES
            for unit in range(0, whole, UNITS):
                for column in range(0, first, PIECE):
                    large(weight, room, delta, before, after, rows, start, column, unit, scale)
                for column in range(first, second, LANES):
                    middle(weight, room, delta, before, after, rows, start, column, unit, scale)
                for column in range(second, columns):
                    small(weight, room, delta, before, after, rows, start, column, unit, scale)
            for unit in range(whole, after):
                for column in range(0, first, PIECE):
                    long(weight, room, delta, before, after, rows, start, column, unit, scale)
                for column in range(first, second, LANES):
                    short(weight, room, delta, before, after, rows, start, column, unit, scale)
                for column in range(second, columns):
                    least(weight, room, delta, before, after, rows, start, column, unit, scale)

    return add


# add_outer(W, A, D, before, after, rows, -eta, room): ``room`` is for rows * COLUMNS numbers.
add_outer, set_outer = _adder(False), _adder(True)
