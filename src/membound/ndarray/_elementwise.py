# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Functions of each element by itself: a line has name, dtypes, meaning and example of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from membound import _core
from membound._core import NDArray
from membound.ndarray._arguments import array_of

Operand = NDArray | bool | int | float

_FLOATS, _NUMBERS = "floats (integers become float64)", "integers or floats"
_INTEGERS, _BITS, _ANY = "integers", "integers or bool", "any dtype"

_TEXT = """{meaning}, element by element.

Takes {takes}; other dtypes raise TypeError.

>>> {call}
array({result})
"""
_PAIR = " that broadcast together and promote to one dtype"


def _named(function: Any, name: str, takes: str, meaning: str, example: str, result: str) -> Any:
    first, _, others = example.partition("]")
    call = f"nd.{name}(nd.asarray({first}]){others})"
    function.__name__ = function.__qualname__ = name
    function.__doc__ = _TEXT.format(takes=takes, meaning=meaning, call=call, result=result)
    return function


def _unary(name: str, dtypes: str, *texts: str) -> Callable[[NDArray], NDArray]:
    def function(x: NDArray, /) -> NDArray:
        return _core.array_elementwise(name, x)

    return _named(function, name, f"an array of {dtypes}", *texts)


def _binary(name: str, dtypes: str, *texts: str) -> Callable[[Operand, Operand], NDArray]:
    def function(x1: Operand, x2: Operand, /) -> NDArray:
        return _core.array_elementwise(name, x1, x2)

    return _named(function, name, f"two arrays of {dtypes}, or one and a number,{_PAIR}", *texts)


# Of one array: name, dtypes, meaning, example and its result.
abs = _unary("abs", _NUMBERS, "Absolute value", "[-2, 1]", "[2, 1]")
acos = _unary("acos", _FLOATS, "Inverse cosine in radians", "[1.0]", "[0.]")
acosh = _unary("acosh", _FLOATS, "Inverse hyperbolic cosine", "[1.0]", "[0.]")
asin = _unary("asin", _FLOATS, "Inverse sine in radians", "[0.0]", "[0.]")
asinh = _unary("asinh", _FLOATS, "Inverse hyperbolic sine", "[0.0]", "[0.]")
atan = _unary("atan", _FLOATS, "Inverse tangent in radians", "[0.0]", "[0.]")
atanh = _unary("atanh", _FLOATS, "Inverse hyperbolic tangent", "[0.0]", "[0.]")
bitwise_invert = _unary(
    "bitwise_invert", _BITS, "Each bit inverted, not of a bool", "[0, 5]", "[-1, -6]"
)
ceil = _unary("ceil", _NUMBERS, "Least integer that is not less", "[1.5]", "[2.]")
cos = _unary("cos", _FLOATS, "Cosine of radians", "[0.0]", "[1.]")
cosh = _unary("cosh", _FLOATS, "Hyperbolic cosine", "[0.0]", "[1.]")
exp = _unary("exp", _FLOATS, "Exponential function", "[0.0]", "[1.]")
expm1 = _unary("expm1", _FLOATS, "Exp(x) - 1, accurate near zero", "[0.0]", "[0.]")
floor = _unary("floor", _NUMBERS, "Greatest integer that is not greater", "[1.5]", "[1.]")
isfinite = _unary(
    "isfinite", _ANY, "Whether neither infinite nor NaN", "[1.0, nd.nan]", "[ True, False]"
)
isinf = _unary("isinf", _ANY, "Whether it is infinite", "[1.0, -nd.inf]", "[False,  True]")
isnan = _unary("isnan", _ANY, "Whether it is NaN", "[1.0, nd.nan]", "[False,  True]")
log = _unary("log", _FLOATS, "Natural logarithm", "[1.0]", "[0.]")
log1p = _unary("log1p", _FLOATS, "Log(1 + x), accurate near zero", "[0.0]", "[0.]")
log2 = _unary("log2", _FLOATS, "Logarithm to base 2", "[8.0]", "[3.]")
log10 = _unary("log10", _FLOATS, "Logarithm to base 10", "[1.0]", "[0.]")
logical_not = _unary("logical_not", _ANY, "Logical not", "[True, False]", "[False,  True]")
negative = _unary("negative", _NUMBERS, "The number with the other sign", "[1, -2]", "[-1,  2]")
positive = _unary("positive", _NUMBERS, "A copy of the number", "[1, -2]", "[ 1, -2]")
reciprocal = _unary("reciprocal", _FLOATS, "1 / x", "[4.0]", "[0.25]")
round = _unary("round", _NUMBERS, "Nearest integer, the even one of two", "[0.5, 1.5]", "[0., 2.]")
sign = _unary("sign", _NUMBERS, "-1, 0 or 1; NaN of NaN", "[-3, 0, 2]", "[-1,  0,  1]")
signbit = _unary("signbit", _FLOATS, "Whether the sign bit is set", "[-0.0, 1.0]", "[ True, False]")
sin = _unary("sin", _FLOATS, "Sine of radians", "[0.0]", "[0.]")
sinh = _unary("sinh", _FLOATS, "Hyperbolic sine", "[0.0]", "[0.]")
square = _unary("square", _NUMBERS, "x * x", "[3]", "[9]")
sqrt = _unary("sqrt", _FLOATS, "Square root, NaN of negative numbers", "[9.0]", "[3.]")
tan = _unary("tan", _FLOATS, "Tangent of radians", "[0.0]", "[0.]")
tanh = _unary("tanh", _FLOATS, "Hyperbolic tangent", "[0.0]", "[0.]")
trunc = _unary("trunc", _NUMBERS, "Nearest integer towards zero", "[-1.5]", "[-1.]")

# Of two.
add = _binary("add", _NUMBERS, "Sum", "[1, 2], 3", "[4, 5]")
atan2 = _binary("atan2", _FLOATS, "Angle in radians of (x2, x1)", "[0.0], 1.0", "[0.]")
bitwise_and = _binary("bitwise_and", _BITS, "And of each bit", "[6, 5], 3", "[2, 1]")
bitwise_left_shift = _binary(
    "bitwise_left_shift", _INTEGERS, "Bits shifted up by x2", "[1, 3], 2", "[ 4, 12]"
)
bitwise_or = _binary("bitwise_or", _BITS, "Or of each bit", "[6, 5], 3", "[7, 7]")
bitwise_right_shift = _binary(
    "bitwise_right_shift", _INTEGERS, "Bits shifted down", "[8, -8], 2", "[ 2, -2]"
)
bitwise_xor = _binary("bitwise_xor", _BITS, "Exclusive or of each bit", "[6, 5], 3", "[5, 6]")
copysign = _binary("copysign", _FLOATS, "x1 with the sign of x2", "[2.0], -1.0", "[-2.]")
divide = _binary("divide", _FLOATS, "Quotient", "[1.0, 3.0], 2.0", "[0.5, 1.5]")
equal = _binary("equal", _ANY, "Whether they are equal", "[1, 2], 2", "[False,  True]")
floor_divide = _binary("floor_divide", _NUMBERS, "Floor of the quotient", "[7, -7], 2", "[ 3, -4]")
greater = _binary("greater", _ANY, "Whether x1 > x2", "[1, 3], 2", "[False,  True]")
greater_equal = _binary("greater_equal", _ANY, "Whether x1 >= x2", "[1, 2], 2", "[False,  True]")
hypot = _binary("hypot", _FLOATS, "sqrt(x1**2 + x2**2) without overflow", "[3.0], 4.0", "[5.]")
less = _binary("less", _ANY, "Whether x1 < x2", "[1, 3], 2", "[ True, False]")
less_equal = _binary("less_equal", _ANY, "Whether x1 <= x2", "[2, 3], 2", "[ True, False]")
logaddexp = _binary("logaddexp", _FLOATS, "Log of exp(x1) + exp(x2)", "[-nd.inf], 1.0", "[1.]")
logical_and = _binary("logical_and", _ANY, "Logical and", "[True, False], True", "[ True, False]")
logical_or = _binary("logical_or", _ANY, "Logical or", "[True, False], False", "[ True, False]")
logical_xor = _binary(
    "logical_xor", _ANY, "Logical exclusive or", "[True, False], True", "[False,  True]"
)
maximum = _binary("maximum", _NUMBERS, "The greater one, NaN if one is NaN", "[1, 3], 2", "[2, 3]")
minimum = _binary("minimum", _NUMBERS, "The lesser one, NaN if one is NaN", "[1, 3], 2", "[1, 2]")
multiply = _binary("multiply", _NUMBERS, "Product", "[1, 2], 3", "[3, 6]")
nextafter = _binary("nextafter", _FLOATS, "The next number on the way to x2", "[0.0], 0.0", "[0.]")
not_equal = _binary("not_equal", _ANY, "Whether they differ", "[1, 2], 2", "[ True, False]")
pow = _binary("pow", _NUMBERS, "x1 to the power x2", "[2, 3], 2", "[4, 9]")
remainder = _binary("remainder", _NUMBERS, "x1 - floor(x1 / x2) * x2", "[7, -7], 3", "[1, 2]")
subtract = _binary("subtract", _NUMBERS, "Difference", "[4, 5], 3", "[1, 2]")


def clip(x: NDArray, /, min: Operand | None = None, max: Operand | None = None) -> NDArray:
    """Limit each element to the range from min to max; NaN of any of them gives NaN.

    min and max are arrays that broadcast with x, of its dtype, numbers, or None for no limit.

    >>> nd.clip(nd.asarray([1, 5, 9]), 2, 8)
    array([2, 5, 8])
    """
    array_of("clip", "x", x)
    if min is not None and max is not None:
        return _core.array_elementwise("clip", x, min, max)
    if min is not None:
        return _core.array_elementwise("maximum", x, min)
    return x.copy() if max is None else _core.array_elementwise("minimum", x, max)


def conj(x: NDArray, /) -> NDArray:
    """Return the complex conjugate: of real numbers, which all dtypes here hold, a copy.

    >>> nd.conj(nd.asarray([2.0]))
    array([2.])
    """
    return _core.array_elementwise("positive", x)


def real(x: NDArray, /) -> NDArray:
    """Return the real part: of real numbers, which all dtypes here hold, a copy.

    >>> nd.real(nd.asarray([2.0]))
    array([2.])
    """
    return _core.array_elementwise("positive", x)


def imag(x: NDArray, /) -> NDArray:
    """Return the imaginary part: of real numbers, which all dtypes here hold, zeros.

    >>> nd.imag(nd.asarray([2.0]))
    array([0.])
    """
    array_of("imag", "x", x)
    return _core.array_full(x.shape, 0, x.dtype, x.device)
