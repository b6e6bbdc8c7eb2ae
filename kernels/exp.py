"""exp and the logistic function of Lanes, from basic arithmetic alone: the same bits whatever the C library."""

from __future__ import annotations

from typing import Any

from numba import njit

from kernels.lanes import at_least, broadcast, fused, maximum, scaled_by_power

# exp(f) = 1 + f * (c0 + f * (c1 + ...)) for |f| <= ln(2) / 2: minimax in the relative error, which is 8.2e-13
C0, C1, C2, C3 = 0.9999999999830721, 0.5000000000458005, 0.1666666687321836, 0.04166666453763404
C4, C5, C6, C7 = 0.008333268779240996, 0.001388915489083821, 0.00019914666725956483, 2.4733018139121886e-05
EXP_ERROR = 1e-12  # relative

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
TO_INTEGER = 6755399441055744.0  # 1.5 * 2^52: added to x it leaves round(x) in the low bits of the mantissa
EXPONENT_MIN = -700.0  # e^-700 is 1e-304, and adds nothing to a 1


@njit(nogil=True, cache=True)
def exp_not_positive(x: Any) -> Any:
    """e^x for lanes of -inf <= x <= 0; what is below EXPONENT_MIN counts as that. exp(0) is 1 exactly."""
    x = maximum(x, broadcast(EXPONENT_MIN))
    shifted = fused(x, broadcast(LOG2_E), broadcast(TO_INTEGER))
    f = fused(shifted - broadcast(TO_INTEGER), broadcast(-LN_2), x)
    p = fused(broadcast(C7), f, broadcast(C6))
    p = fused(p, f, broadcast(C5))
    p = fused(p, f, broadcast(C4))
    p = fused(p, f, broadcast(C3))
    p = fused(p, f, broadcast(C2))
    p = fused(p, f, broadcast(C1))
    p = fused(p, f, broadcast(C0))
    return scaled_by_power(fused(p, f, broadcast(1.0)), shifted)


@njit(nogil=True, cache=True)
def logistic(y: Any) -> Any:
    """1 / (1 + e^-y), with no overflow for any y; relative error of a few EXP_ERROR while y > EXPONENT_MIN."""
    one, zero = broadcast(1.0), broadcast(0.0)
    small = exp_not_positive(zero - maximum(y, zero - y))
    positive = at_least(y, zero)
    return (positive + (one - positive) * small) / (one + small)
