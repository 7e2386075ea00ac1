"""Megatron's rules of the dynamic loss scale, one by one and on numbers."""


def scales(overflows, scale=2.0**32, lowest=1.0, window=1000, hysteresis=2):
    """The scale after each step, from whether it overflowed."""
    out, left, good = [], hysteresis, 0
    for overflow in overflows:
        if overflow:
            good, left = 0, left - 1
            if left <= 0:
                scale = max(scale / 2, lowest)
        else:
            good += 1
            if good == window:
                good, left, scale = 0, hysteresis, scale * 2
        out.append(scale)
    return out
