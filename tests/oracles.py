"""The geometry written down again from the paper, in 60-digit arithmetic with mpmath."""

import mpmath as mp

mp.mp.dps = 60


def _vector(x):
    return [value if isinstance(value, mp.mpf) else mp.mpf(float(value)) for value in x]


def dot(x, y):
    return mp.fsum(a * b for a, b in zip(x, y, strict=True))


def time(x, K):
    x = _vector(x)
    return mp.sqrt(mp.mpf(K) + dot(x, x))


def inner(x, y, K):
    return dot(_vector(x), _vector(y)) - time(x, K) * time(y, K)


def distance(x, y, K):
    ratio = -inner(x, y, K) / mp.mpf(K)
    return mp.sqrt(K) * mp.acosh(max(ratio, mp.mpf(1)))


def radius(x):
    return mp.sqrt(dot(_vector(x), _vector(x)))


def exp_map0(v, K):
    n = radius(v) / mp.sqrt(K)
    return [value * (mp.sinh(n) / n if n else 1) for value in _vector(v)]


def log_map0(x, K):
    n = radius(x) / mp.sqrt(K)
    return [value * (mp.asinh(n) / n if n else 1) for value in _vector(x)]


def half_aperture(x, K, kappa):
    return mp.asin(min(mp.mpf(1), 2 * mp.mpf(kappa) * mp.sqrt(K) / radius(x)))


def exterior_angle(x, y, K):
    gamma = inner(x, y, K) / mp.mpf(K)
    cosine = (time(y, K) + time(x, K) * gamma) / (radius(x) * mp.sqrt(gamma**2 - 1))
    return mp.acos(max(mp.mpf(-1), min(mp.mpf(1), cosine)))


def gradient(function, x):
    """Central differences of a function of one vector, exact to far beyond double precision."""
    x, step = _vector(x), mp.mpf(10) ** -25
    result = []
    for i in range(len(x)):
        ahead, behind = list(x), list(x)
        ahead[i], behind[i] = x[i] + step, x[i] - step
        result.append(float((function(ahead) - function(behind)) / (2 * step)))
    return result
