"""Butterflies: (a, b) -> (a + b, a - b) on vectors of 16 numbers, in LLVM's own terms.

Compilers vectorise the wide levels of a Walsh-Hadamard transform one at a time, the four narrowest not at all.
Here a level is a sum of whole registers, or of a register and its shuffled self, and four or eight levels pass
between one load and one store. Levels run from narrow to wide and nothing is reassociated, so the result is
that of the loop in ``fedpaq.quantizers.rotated.rotation``, to the bit.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
RUN = LANES * LANES  # coordinates that ``mix_run`` transforms whole
_SIGN = 1 << 31
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_BITS = ir.VectorType(ir.IntType(32), LANES)


def _mix_lanes(builder, vector):
    """Transform the 16 lanes of a register: lane j becomes lane j ^ width plus or minus itself."""
    for level in range(4):
        width = 1 << level
        order = ir.Constant(_BITS, [lane ^ width for lane in range(LANES)])
        minus = ir.Constant(_BITS, [_SIGN if lane & width else 0 for lane in range(LANES)])
        other = builder.shuffle_vector(vector, vector, order)
        signed = builder.bitcast(builder.xor(builder.bitcast(vector, _BITS), minus), _FLOATS)
        vector = builder.fadd(other, signed)
    return vector


def _mix_vectors(builder, vectors):
    """Transform across registers, in place."""
    width = 1
    while width < len(vectors):
        for low in range(len(vectors)):
            if not low & width:
                one, other = vectors[low], vectors[low | width]
                vectors[low] = builder.fadd(one, other)
                vectors[low | width] = builder.fsub(one, other)
        width *= 2


def _places(context, builder, signature, array, start, stride, count):
    """Return the addresses of ``count`` runs of 16 numbers, ``stride`` apart."""
    data = context.make_array(signature.args[0])(context, builder, array).data
    place = builder.gep(data, [start])
    places = []
    for _ in range(count):
        places.append(builder.bitcast(place, _FLOATS.as_pointer()))
        place = builder.gep(place, [stride])
    return places


def _generator(count, lanes_too):
    def generate(context, builder, signature, arguments):
        places = _places(context, builder, signature, *arguments, count)
        vectors = [builder.load(place, align=4) for place in places]
        if lanes_too:
            vectors = [_mix_lanes(builder, vector) for vector in vectors]
        _mix_vectors(builder, vectors)
        for place, vector in zip(places, vectors, strict=True):
            builder.store(vector, place, align=4)
        return context.get_dummy_value()

    return generate


def _mixer(count, lanes_too=False):
    @intrinsic
    def mix(typing_context, array, start, stride):
        return types.void(array, types.int64, types.int64), _generator(count, lanes_too)

    return mix


# mix_m(array, start, stride): butterflies between m runs of 16 floats, the first at ``start``.
mix_2, mix_4, mix_8, mix_16 = (_mixer(count) for count in (2, 4, 8, 16))
# mix_run(array, start, 16): the whole transform of 256 floats.
mix_run = _mixer(LANES, lanes_too=True)
