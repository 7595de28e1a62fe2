# The rules of the simplifier by name, each with the law that makes it right.  Included by simplify.pyx.
#
# What a law may assume is written out: lo <= x <= hi are bounds that are known of a value.  An index is a whole number
# of any size, since it never wraps; the factors and constants that a rule computes with are checked for overflow, and
# a rule that would overflow is not applied.  x//c rounds down, x%c is x - x//c*c, and both are 0 where c is 0.
# tests/test_laws.py states each law for a solver, which proves it for all numbers.
#
# A rule notes its name where it is applied: `by` for what it returns, `note` for a step on the way there.  A rewrite
# without end is reported with the last one.

cpdef enum Law:
    UNNAMED
    # of every type
    ONE_VALUE  # lo == hi: x = lo
    FOLD  # an operation on constants is the constant that it gives, wrapped or rounded as its type is
    COMMUTE  # a+b = b+a, a*b = b*a, max, min, and, or, xor, ==, != alike
    # types that wrap: modulo 2^n
    REASSOCIATE  # (x op c) op d = x op (c op d)
    ADD_ZERO  # x + 0 = x
    ADD_NEGATIVE  # x + x*-1 = 0
    MUL_ONE  # x * 1 = x
    DIV_ONE  # x // 1 = x
    SHIFT_ZERO  # x << 0 = x >> 0 = x
    # floats: to the bit, NaN and infinities included
    FLOAT_ADD_ZERO  # x + -0.0 = x
    FLOAT_MUL_ONE  # x * 1.0 = x
    FLOAT_DIV_ONE  # x / 1.0 = x
    # sums of products
    SUM  # f*x + g*x = (f+g)*x, f*(g*x + h) = f*g*x + f*h
    PRODUCT  # (x*c)*(y*d) = (x*y)*(c*d), in any order
    # what may stand in place of a term in a bound: f > 0 times it
    RELAX_RANGE  # 0 <= r < e: f*r <= f*e - f
    RELAX_MIN_MAX  # f*min(x, y) <= f*x, f*max(x, y) >= f*x
    RELAX_DIV  # f = g*c: g*x - g*(c-1) <= f*(x//c) <= g*x
    # division by a constant c > 0
    DECIDED  # lo <= x <= hi, lo//c = hi//c: x//c = lo//c, x%c = x - lo//c*c
    SPLIT  # (w*c + r)//c = w + r//c, (w*c + r)%c = r%c
    FACTOR  # c = g*d, 0 <= r < g: (w*g + r)//c = w//d, (w*g + r)%c = w%d*g + r
    NESTED_DIV  # a > 0: (x//a + k)//c = (x + k*a)//(a*c)
    MOD_THEN_DIV  # x%(a*c)//c = x//c%a
    NESTED_MOD  # c divides a*f: (x%a*f + r)%c = (x*f + r)%c
    LIFT  # x//c = (x + k*c)//c - k, x%c = (x + k*c)%c
    # division by others
    DIV_SMALL  # 0 <= x < y: x//y = 0, x%y = x
    DIV_ZERO  # x//0 = x%0 = 0
    DIV_NEGATIVE  # c > 0: x//-c = -x//c, x%-c = -(-x%c)
    SHIFT_POWER  # 0 < n < 62: x << n = x * 2^n, x >> n = x // 2^n
    # a quotient and its remainder
    QUOTIENT_AND_REMAINDER  # f*c*(y//c) + f*(y%c) = f*y
    DIGITS  # b > 0: f*c*(y//c%b) + f*(y%c) = f*(y%(b*c))
    # absolute value
    ABS_POSITIVE  # 0 <= x: |x| = x
    ABS_NEGATIVE  # x <= 0: |x| = x*-1
    # comparisons of whole numbers
    COMPARE_BOUNDS  # hi < 0: x < 0; 0 <= lo: not x < 0; 0 < lo or hi < 0: x != 0; lo = hi = 0: x == 0
    COMPARE_SELF  # x <= x, x == x; not x < x, not x != x
    COMPARE_BOOL  # (p == true) = p, (p == false) = not p, and != the other way round
    COMPARE_SIDES  # a < b just where a - b < 0, and == and != alike
    LESS_OR_EQUAL  # a <= b just where a - b - 1 < 0
    QUOTIENT_SIGN  # g > 0, r//g = q: w*g + r < 0 just where w + q < 0
    DIV_SIGN  # g > 0: x//g + k < 0 just where x + k*g < 0
    MINUS_DIV_SIGN  # g > 0: -(x//g) + k < 0 just where -x + (k+1)*g - 1 < 0
    COMMON_FACTOR  # g != 0: g*x + k == 0 just where g divides k and x + k/g == 0
    # MIN and MAX of whole numbers
    MIN_MAX_SELF  # max(x, x) = min(x, x) = x
    MIN_MAX_ORDERED  # a >= b: max(a, b) = a, min(a, b) = b
    MIN_MAX_CONSTANTS  # max(max(x, c), d) = max(x, max(c, d)), and min
    # boolean logic, of bits too where it says x
    SELF  # x and x = x or x = x
    NEUTRAL  # x and -1 = x, x or 0 = x; of bool true is neutral to and
    DOMINANT  # p and false = false, p or true = true
    JUNCTION  # chains of and, and of or, in any order, each operand once
    COMPLEMENT  # p and not p = false, p or not p = true
    ABSORB  # p and (p or q) = p, p or (p and q) = p
    LIMITS_ONE_SIDE  # x < a and x < b just where x < min(a, b); or with max; of c < x the other way round
    LIMITS_EMPTY  # b <= a + 1: not (a < x and x < b)
    LIMITS_POINT  # a < x and x < a + 2 just where x == a + 1
    LIMITS_ALL  # a < b: x < b or a < x
    LIMITS_HOLE  # x < a or a < x just where x != a
    XOR_SELF  # x xor x = 0
    XOR_ZERO  # x xor 0 = x
    NOT_NOT  # not not p = p
    NOT_EQUAL  # not a == b just where a != b, of NaN too
    NOT_LESS  # of whole numbers: not a < b just where b <= a, not a <= b just where b < a
    # choices
    WHERE_DECIDED  # true ? a : b = a, false ? a : b = b
    WHERE_SAME  # p ? a : a = a
    WHERE_NOT  # not p ? a : b = p ? b : a
    WHERE_TWICE  # p ? (p ? a : d) : b = p ? a : b = p ? a : (p ? d : b)
    WHERE_AND  # p ? (q ? a : b) : b = p and q ? a : b
    WHERE_BOOL  # p ? true : q = p or q, p ? q : false = p and q, p ? false : q = not p and q, p ? q : true = not p or q
    WHERE_MIN_MAX  # a < b ? a : b = min(a, b), b < a ? a : b = max(a, b)
    # casts
    CAST_SAME  # a value as its own type
    CAST_CONSTANT  # a constant as another type
    CAST_TWICE  # the type in between holds every value that x may have: (u)(t)x = (u)x


cdef Law applied = UNNAMED  # the rule that was noted last,
cdef Law last = UNNAMED  # and the one that gave the last replacement


cdef inline UOp by(Law law, UOp out):
    """``out``, which this rule gives."""
    global applied
    applied = law
    return out


cdef inline void note(Law law) noexcept:
    """A step by this rule."""
    global applied
    applied = law
