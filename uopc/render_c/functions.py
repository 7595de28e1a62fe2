"""Inline functions for what C has no operator for: each declared in a unit that uses it, by the name that is returned.

Every form was chosen by looking at what gcc 12 and clang 14 make of it with ``-O1``: ``select`` is a compare and a
masked move with AVX-512 and a blend with AVX2, ``fold`` a logarithm of extracts, and one instruction of the machine
stands where a loop over lanes stays scalar.
"""

from __future__ import annotations

import zlib

from uopc._hot.text import Code, call
from uopc.ops import Ops
from uopc.render_c.types import SIGNED, Declarations, literal, type_name
from uopc.uop import DType, dtypes

LIBM = {
    Ops.EXP: "exp", Ops.EXP2: "exp2", Ops.EXPM1: "expm1", Ops.LOG: "log", Ops.LOG2: "log2", Ops.LOG1P: "log1p",
    Ops.SIN: "sin", Ops.COS: "cos", Ops.TAN: "tan", Ops.TANH: "tanh", Ops.ERF: "erf", Ops.NDTR: "ndtr", Ops.POW: "pow",
    Ops.FMOD: "fmod", Ops.SQRT: "sqrt",
}  # fmt: skip

INFIX = {
    Ops.ADD: "+", Ops.MUL: "*", Ops.DIV: "/", Ops.IDIV: "/", Ops.MOD: "%", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^",
    Ops.SHL: "<<", Ops.SHR: ">>", Ops.CMPLT: "<", Ops.CMPLE: "<=", Ops.CMPEQ: "==", Ops.CMPNE: "!=",
}  # fmt: skip
# Logic on masks (-1 or 0) by what a reduction or an operator on bools is called.
ON_MASKS = {Ops.MAX: Ops.OR, Ops.ADD: Ops.OR, Ops.MIN: Ops.AND, Ops.MUL: Ops.AND}

# What a macro of the compiler says that the machine has, by the bytes of the vector.
HAS_VECTORS = {16: "__AVX__ && __F16C__", 32: "__AVX__ && __F16C__", 64: "__AVX512F__"}
# Whether the processor multiplies and adds with one rounding.
HAS_FMA = "(__FMA__ || __ARM_FEATURE_FMA)"
# The same of conversion to bfloat16 and dot products of it, and by how many words.
HAS_BF16 = "__AVX512BF16__ && __AVX512VL__"
BF16_LANES = (4, 8, 16)
# What instructions call an integer of so many bytes.
WIDTHS = {1: "b", 2: "w", 4: "d", 8: "q"}


def shuffle(unit: Declarations, order: tuple[int, ...], dtype: DType) -> str:
    """The lanes of two vectors in another order; those of the second count on from those of the first."""
    t, lanes = unit.type(dtype), ", ".join(str(i) for i in order)
    mask = unit.mask(dtype.scalar().itemsize, dtype.count)
    body = "\n".join(
        [
            "#if defined __clang__ || __GNUC__ >= 12",
            f"  return __builtin_shufflevector(a, b, {lanes});",
            "#else",
            f"  return __builtin_shuffle(a, b, ({mask}){{{lanes}}});",
            "#endif",
        ]
    )
    name = f"shuffle_{order[0]}_{order[1]}_{zlib.crc32(repr(order).encode()):08x}_{type_name(dtype)}"
    return unit.function(name, f"{t} ({t} a, {t} b)", body)


def select(unit: Declarations, dtype: DType) -> str:
    """Lanes of a where a mask of lanes as wide holds, else of b."""
    t, m = unit.type(dtype), unit.mask(dtype.scalar().itemsize, dtype.count)
    body = f"return ({t})((m & ({m})a) | (~m & ({m})b));"
    return unit.function(f"select_{type_name(dtype)}", f"{t} ({m} m, {t} a, {t} b)", body)


def extremum(unit: Declarations, op: Ops, dtype: DType) -> str:
    """The larger (MAX) or smaller of two; a NaN on either side is the result, as NumPy's."""
    t, sign = unit.type(dtype), ">" if op is Ops.MAX else "<"
    holds = f"(a {sign} b) | (a != a)" if dtype.is_float else f"a {sign} b"
    body = f"return ({holds}) ? a : b;"
    if dtype.count > 1:  # `bound` gives its first operand where either is NaN
        body = f"return {select(unit, dtype)}({holds}, a, b);"
        if dtype.is_float and not dtype.is_half:
            body = f"return {select(unit, dtype)}(a != a, a, {bound(unit, op, dtype)}(b, a));"
    return unit.function(f"{op.name.lower()}_{type_name(dtype)}", f"{t} ({t} a, {t} b)", body)


def bound(unit: Declarations, op: Ops, dtype: DType) -> str:
    """MAX or MIN of floats where b is no NaN: one instruction, which gives a where they do not compare."""
    t, sign = unit.type(dtype), "<" if op is Ops.MAX else ">"
    otherwise = f"a {sign} b ? b : a" if dtype.count == 1 else f"{select(unit, dtype)}(a {sign} b, b, a)"
    name = f"at_{'least' if op is Ops.MAX else 'most'}_{type_name(dtype)}"
    form = f"{'p' if dtype.count > 1 else 's'}{'s' if dtype.scalar() is dtypes.float32 else 'd'}"
    body = _one_instruction(f"v{op.name.lower()}{form} %1, %2, %0", dtype, "ab", [f"return {otherwise};"], unit)
    return unit.function(name, f"{t} ({t} a, {t} b)", *body)


def ldexp(unit: Declarations, dtype: DType) -> str:
    """a * 2^floor(b): one instruction of AVX-512; elsewhere two powers are made in the exponents of floats, since 2^b
    may be no float."""
    t = unit.type(dtype)
    if dtype.count == 1:
        return unit.function(
            "ldexp_float", f"{t} ({t} a, {t} b)", "return __builtin_ldexpf(a, (int)__builtin_floorf(b));"
        )
    m = unit.mask(4, dtype.count)
    # b + 254 is positive, so that a conversion cuts off what floor would
    otherwise = [
        f"{m} n = __builtin_convertvector(b + 254.0f, {m}), half = n >> 1;",
        f"return a * ({t})(half << 23) * ({t})((n - half) << 23);",
    ]
    body = otherwise
    if dtype.itemsize == 64:
        body = _one_instruction("vscalefps %2, %1, %0", dtype, "ab", otherwise, unit)
    return unit.function(f"ldexp_{type_name(dtype)}", f"{t} ({t} a, {t} b)", *body)


# What gcc calls a multiplication and addition of vectors, by the type and the bytes of the vector.
FMA = {
    (dtypes.float32, 16): "__builtin_ia32_vfmaddps(a, b, c)",
    (dtypes.float32, 32): "__builtin_ia32_vfmaddps256(a, b, c)",
    (dtypes.float32, 64): "__builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4)",
    (dtypes.float64, 16): "__builtin_ia32_vfmaddpd(a, b, c)",
    (dtypes.float64, 32): "__builtin_ia32_vfmaddpd256(a, b, c)",
    (dtypes.float64, 64): "__builtin_ia32_vfmaddpd512_mask(a, b, c, (unsigned char)-1, 4)",
}


def fma(unit: Declarations, dtype: DType) -> str:
    """a * b + c, rounded once: what the compiler knows as one instruction (as a piece of assembler it would keep
    accumulators out of registers), or by parts.  Without an instruction for it, it is rounded twice: C's function would
    take a hundred times as long."""
    t, twice, parts = unit.type(dtype), "return a * b + c;", _fma_by_parts(unit, dtype)
    body = [f"#if {HAS_FMA}", *parts, "#else", twice, "#endif"]
    instruction = FMA.get((dtype.scalar(), dtype.itemsize))
    if instruction is not None:
        has = f"__FMA__ && {HAS_VECTORS[dtype.itemsize]}"
        contracted = [f"#if {has} && __clang__", "#pragma clang fp contract(fast)", twice]
        body = [*contracted, f"#elif {has}", f"return ({t}){instruction};", f"#elif {HAS_FMA}", *body[1:]]
    return unit.function(f"fma_{type_name(dtype)}", f"{t} ({t} a, {t} b, {t} c)", *body)


def _fma_by_parts(unit: Declarations, dtype: DType) -> list[str]:
    """In halves of what is wider than a register, else by C's own function, lane by lane."""
    t, scalar = unit.type(dtype), dtype.scalar()
    if dtype.itemsize > 64:
        half = scalar.vec(dtype.count // 2)
        h, name = unit.in_memory(half, half), unit.once(fma, half)
        parts = [f"(({h} *)&r)[{k}] = {name}({', '.join(f'(({h} *)&{x})[{k}]' for x in 'abc')});" for k in (0, 1)]
        return [f"{t} r;", *parts, "return r;"]
    function = f"__builtin_fma{'f' if scalar is dtypes.float32 else ''}"
    if dtype.count == 1:
        return [f"return {function}(a, b, c);"]
    return [f"{t} r;", f"for (int i = 0; i < {dtype.count}; i++) r[i] = {function}(a[i], b[i], c[i]);", "return r;"]


def table(unit: Declarations, values: tuple[float, ...]) -> str:
    """A table of a LOOKUP, by a name that says what it holds, since kernels share units."""
    text = ", ".join(literal(v, dtypes.float32, False).text for v in values)
    name = f"table_{zlib.crc32(text.encode()):08x}"
    unit.lines.setdefault(name, f"static const float {name}[16] __attribute__((aligned(64))) = {{{text}}};")
    return name


def lookup(unit: Declarations, dtype: DType) -> str:
    """What a table holds at the low four bits of indices: a permutation of one register, or of two and a blend."""
    t, m = unit.type(dtype), unit.mask(4, dtype.count)
    lanes = [f"{t} r;", f"for (int k = 0; k < {dtype.count}; k++) r[k] = table[i[k] & 15];", "return r;"]
    body, first = lanes, f"const {t} first = *(const {t} *)table"
    if dtype.itemsize == 64:
        asm = '__asm__("vpermps %1, %2, %0" : "=v"(r) : "v"(first), "v"(i));'
        body = ["#if __AVX512F__", f"{first};", f"{t} r;", asm, "return r;", "#else", *lanes, "#endif"]
    elif dtype.itemsize == 32:
        asm = '__asm__("vpermps %1, %2, %0" : "=x"({0}) : "x"({1}), "x"(i));'
        both = [asm.replace("{0}", r).replace("{1}", half) for r, half in (("r", "first"), ("s", "second"))]
        second = f"second = ((const {t} *)table)[1];"
        chosen = f"return {select(unit, dtype)}((i << 28) >> 31, s, r);"
        body = ["#if __AVX2__", f"{first}, {second}", f"{t} r, s;", *both, chosen, "#else", *lanes, "#endif"]
    return unit.function(f"lookup_{type_name(dtype)}", f"{t} (const float *table, {m} i)", *body)


def reinterpret(unit: Declarations, dtype: DType, source: DType) -> str:
    """The bits of a scalar as another type."""
    name, head = f"{type_name(dtype)}_bits_{type_name(source)}", f"{dtype.c_name} ({source.c_name} a)"
    union = f"union {{ {source.c_name} from; {dtype.c_name} to; }}"
    return unit.function(name, head, f"return (({union}){{a}}).to;")


def lane_by_lane(unit: Declarations, op: Ops, dtype: DType) -> str:
    """A function of C's library on each lane."""
    t, scalar = unit.type(dtype), dtype.scalar()
    operands = "ab" if op in (Ops.POW, Ops.FMOD) else "a"
    call = f"{libm(unit, op, scalar)}({', '.join(f'{x}[i]' for x in operands)})"
    body = [f"{t} r;", f"for (int i = 0; i < {dtype.count}; i++) r[i] = {call};", "return r;"]
    if op is Ops.SQRT:
        instruction = "vsqrtps" if scalar is dtypes.float32 else "vsqrtpd"
        body = _one_instruction(f"{instruction} %1, %0", dtype, "a", body, unit)
    return unit.function(f"{LIBM[op]}_{type_name(dtype)}", f"{t} ({', '.join(f'{t} {x}' for x in operands)})", *body)


def convert(unit: Declarations, dtype: DType, source: DType, x: Code) -> Code:
    """Lanes of another type of number."""
    t, s = unit.type(dtype), unit.type(source)
    instruction = _conversion(dtype, source)
    if instruction is None:
        return call("__builtin_convertvector", x, Code(t))
    where = "vm" if dtype.itemsize > source.itemsize else "v"  # what narrows has no form that reads memory
    body = _one_instruction(instruction, dtype, "a", [f"return __builtin_convertvector(a, {t});"], unit, where)
    # gcc 12 takes the lanes apart; clang finds the instruction, and old ones hold no vector of halves in a register
    body = [f"{line} && !__clang__" if line.startswith("#if") else line for line in body]
    return call(unit.function(f"{type_name(dtype)}_from_{type_name(source)}", f"{t} ({s} a)", *body), x)


def _conversion(dtype: DType, source: DType) -> str | None:
    """The instruction that gcc does not find: between 16-bit floats and float32, and of integers to 64 bytes of wider
    ones, which it makes of two halves."""
    if {dtype.scalar(), source.scalar()} == {dtypes.float16, dtypes.float32}:
        return "vcvtps2ph $4, %1, %0" if dtype.scalar() is dtypes.float16 else "vcvtph2ps %1, %0"
    from_, to = source.scalar().itemsize, dtype.scalar().itemsize
    if dtype.itemsize == 64 and dtype.is_int and source.is_int and from_ < to and to >= 4:
        return f"vpmov{'s' if source.kind == 'i' else 'z'}x{WIDTHS[from_]}{WIDTHS[to]} %1, %0"
    return None


def _one_instruction(
    instruction: str, dtype: DType, operands: str, otherwise: list[str], unit: Declarations, where: str = "v"
) -> list[str]:
    """``instruction``, with %0 the result and %1 ... the operands, where the machine has it; else these lines.  where:
    what operands may be, in registers ("v") or memory ("m")."""
    wide = dtype.count * max(dtype.scalar().itemsize, 4)  # of a conversion, the wider side counts
    if dtype.count > 1 and wide not in HAS_VECTORS:
        return otherwise
    inputs = ", ".join(f'"{where}"({x})' for x in operands)
    asm = f'__asm__("{instruction}" : "=v"(r) : {inputs});'
    condition = HAS_VECTORS.get(wide, HAS_VECTORS[16])
    return [f"#if {condition}", f"{unit.type(dtype)} r;", asm, "return r;", "#else", *otherwise, "#endif"]


def load_where(unit: Declarations, dtype: DType) -> str:
    """Memory at consecutive addresses in the lanes in which a mask of lanes as wide holds, 0 in the others: those are
    not read, and need not exist.
    """
    t, size, scalar = unit.type(dtype), dtype.scalar().itemsize, dtype.scalar()
    mask, lanes = unit.mask(size, dtype.count), ", ".join(f"m[{i}] ? p[{i}] : 0" for i in range(dtype.count))
    body = [f"return ({t}){{{lanes}}};"]
    if size in (4, 8) and dtype.itemsize in HAS_VECTORS:
        form, width = ("ps", "d") if size == 4 else ("pd", "q")
        memory = f'"m"(*(const {unit.in_memory(dtype, dtype)} *)p)'
        read = [f'__asm__("vmaskmov{form} %2, %1, %0" : "=x"(r) : "x"(m), {memory});']
        if dtype.itemsize == 64:
            read = [
                "unsigned short k;",
                f'__asm__("vptestm{width} %1, %1, %0" : "=Yk"(k) : "v"(m));',
                f'__asm__("vmovu{form} %2, %0%{{%1%}}%{{z%}}" : "=v"(r) : "Yk"(k), {memory});',
            ]
        body = [f"#if {HAS_VECTORS[dtype.itemsize]}", f"{t} r;", *read, "return r;", "#else", *body, "#endif"]
    return unit.function(f"load_where_{type_name(dtype)}", f"{t} ({mask} m, const {scalar.c_name} *p)", *body)


def pair(unit: Declarations, dtype: DType) -> str:
    """Two float32 as bfloat16 in one word, the first in its lower half."""
    t, words = unit.type(dtype), dtypes.uint32.vec(dtype.count)
    w = unit.type(words)
    rounded = _rounded(unit, dtype)
    body = [f"return {rounded}(a) >> 16 | ({rounded}(b) & 0xffff0000u);"]
    if dtype.count in BF16_LANES:
        halves = dtypes.uint16.vec(2 * dtype.count)
        order = tuple(i for k in range(dtype.count) for i in (k, k + dtype.count))
        asm = f'{unit.type(halves)} r; __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(r) : "v"(a), "v"(b));'
        interleaved = f"return ({w}){unit.once(shuffle, order, halves)}(r, r);"
        body = [f"#if {HAS_BF16}", asm, interleaved, "#else", *body, "#endif"]
    return unit.function(f"pair_{type_name(words)}", f"{w} ({t} a, {t} b)", *body)


def _rounded(unit: Declarations, dtype: DType) -> str:
    """The name of a function: the bits of float32 rounded to the upper half, to nearest even; a NaN stays one."""
    t, words = unit.type(dtype), dtypes.uint32.vec(dtype.count)
    w = unit.type(words)
    bits = f"({w})a" if dtype.count > 1 else f"{reinterpret(unit, words, dtype)}(a)"
    nan, number = f"{bits} | 0x400000u", f"{bits} + 0x7fffu + ({bits} >> 16 & 1u)"
    result = f"a != a ? {nan} : {number}"
    if dtype.count > 1:
        result = f"{unit.once(select, words)}(a != a, {nan}, {number})"
    return unit.function(f"rounded_{type_name(dtype)}", f"{w} ({t} a)", f"return {result};")


def dot2(unit: Declarations, dtype: DType) -> str:
    """c and the products of both halves of two words, the upper ones first: the order of the instruction."""
    t, words = unit.type(dtype), dtypes.uint32.vec(dtype.count)
    w = unit.type(words)

    def half(bits: str) -> str:
        return f"({t})({bits})" if dtype.count > 1 else f"{reinterpret(unit, dtype, words)}({bits})"

    high = f"c + {half('a & 0xffff0000u')} * {half('b & 0xffff0000u')}"
    body = [f"return {high} + {half('a << 16')} * {half('b << 16')};"]
    if dtype.count in BF16_LANES:
        # gcc moves what an asm statement changes to another register and back
        asm = ['__asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));', "return c;"]
        halves = f"half __attribute__((vector_size({dtype.itemsize})));"
        builtin = [
            "#if __GNUC__ >= 13", f"typedef __bf16 {halves}", "#else", f"typedef short {halves}", "#endif",
            f"return __builtin_ia32_dpbf16ps_v{dtype.count}sf(c, (half)a, (half)b);",
        ]  # fmt: skip
        body = [f"#if {HAS_BF16} && __clang__", *asm, f"#elif {HAS_BF16}", *builtin, "#else", *body, "#endif"]
    return unit.function(f"dot2_{type_name(dtype)}", f"{t} ({w} a, {w} b, {t} c)", *body)


def stream(unit: Declarations, dtype: DType) -> str:
    """A vector stored past the caches where its address is a multiple of its size, which one vector's being says of all
    in a row."""
    t, scalar, size = unit.type(dtype), dtype.scalar(), dtype.itemsize
    plain = f"*({unit.in_memory(dtype, dtype)} *)p = a;"
    asm = f'__asm__("vmovntps %1, %0" : "=m"(*({t} *)p) : "v"(a));'
    body = [f"#if {HAS_VECTORS[size]}", f"if (((unsigned long)p & {size - 1}) == 0)", f"  {asm}", "else", "#endif"]
    c_type = "unsigned char" if scalar.is_bool else scalar.c_name
    return unit.function(f"stream_{type_name(dtype)}", f"void ({c_type} *p, {t} a)", *body, f"  {plain}")


def libm(unit: Declarations, op: Ops, dtype: DType) -> str:
    """The function of C's library; a builtin needs no header."""
    if op is Ops.NDTR:
        return unit.function("ndtr_f64", "double (double a)", "return 0.5 * __builtin_erfc(a * -0x1.6a09e667f3bcdp-1);")
    return f"__builtin_{LIBM[op]}{'f' if dtype is dtypes.float32 else ''}"


def fold(unit: Declarations, op: Ops, dtype: DType) -> str:
    """All lanes of a vector combined, one half with the other: a fixed order, and short chains."""
    t, scalar = unit.type(dtype), dtype.scalar()
    steps, value, count = [], "a", dtype.count
    while count > 1:
        count //= 2
        half = scalar.vec(count)
        if count == 1:
            steps.append(f"return {_pair(unit, op, half, f'{value}[0]', f'{value}[1]')};")
            break
        h = unit.in_memory(half, half)
        low, high = f"*({h} *)&{value}", f"(({h} *)&{value})[1]"
        steps.append(f"{unit.type(half)} h{count} = {_pair(unit, op, half, low, high)};")
        value = f"h{count}"
    return unit.function(f"{op.name.lower()}_lanes_{type_name(dtype)}", f"{scalar.c_name} ({t} a)", *steps)


def _pair(unit: Declarations, op: Ops, dtype: DType, a: str, b: str) -> str:
    if op in (Ops.MAX, Ops.MIN):
        return f"{extremum(unit, op, dtype)}({a}, {b})"
    return f"{a} {INFIX[op]} {b}"


def mask_dtype(size: int, count: int) -> DType:
    """The integers that a vector of bool is made of."""
    return SIGNED[size].vec(count)
