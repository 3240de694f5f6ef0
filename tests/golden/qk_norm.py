#!/usr/bin/env python3
"""QK-Norm alone: worked values, forward and backward, and the bounds on |s|; float64, backward by closed formulas.

x is one of q [rows,H,d] and k [rows,G,d]. With N the width of a statistic (d for scope head, all features for full)
and S = sum(gain*dy*xhat) over it:
  rms    r = 1/sqrt(mean(x^2)+eps)   y = gain*r*x         dx = r*(gain*dy - xhat*S/N)
  layer  r = 1/sqrt(var(x)+eps)      y = gain*r*(x-mean)  dx = r*(gain*dy - mean(gain*dy) - xhat*S/N)
  l2     r = 1/max(|x|,eps)          y = gain*r*x         dx = r*(gain*dy - xhat*S), below the floor 0 (Keel's choice)
"""
import math

import numpy as np

import tape
from decoder import NORMS
from json_file import nine_digits

HEADS, KV_HEADS, D = 4, 2, 6
SCALE = np.array([0.5, -1.25, 3.0, 10.0])  # g of each head in the bounds


def noise(seed, *shape):
    """Repeatable values in [-1, 1) that fp32 holds exactly."""
    i = np.arange(np.prod(shape), dtype=float)
    wave = np.sin(12.9898 * i + 78.233 * seed + 0.7) * 43758.5453
    return (2 * (wave - np.floor(wave)) - 1).astype(np.float32).astype(float).reshape(shape)


def grouped(x, scope):
    """[rows, heads, d] as [rows, statistics, N]."""
    return x.reshape(len(x), -1, x.shape[-1]) if scope == "head" else x.reshape(len(x), 1, -1)


def centred_and_rate(x, kind, eps):
    """x (less its mean for layer) and r."""
    if kind == "l2":
        return x, 1 / np.maximum(np.sqrt((x ** 2).sum(-1, keepdims=True)), eps)
    x = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    return x, 1 / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps)


def forward(x, gain, options):
    centred, r = centred_and_rate(grouped(x, options["scope"]), options["kind"], options["eps"])
    return (r * centred).reshape(x.shape) * gain


def backward(x, gain, dy, options):
    """(dx, d of the full [heads,d] gain)."""
    kind, scope = options["kind"], options["scope"]
    centred, r = centred_and_rate(grouped(x, scope), kind, options["eps"])
    xhat, dyg = r * centred, grouped(dy * gain, scope)
    total = (dyg * xhat).sum(-1, keepdims=True)
    if kind == "l2":
        dx = r * (dyg - xhat * total)
        dx = np.where(r < 1 / options["eps"], dx, 0.0)
    else:
        mean = dyg.mean(-1, keepdims=True) if kind == "layer" else 0.0
        dx = r * (dyg - mean - xhat * total / xhat.shape[-1])
    return dx.reshape(x.shape), (dy * xhat.reshape(x.shape)).sum(0)


def stored_gain(options, heads, seed):
    """The stored weight: [d] or [heads,d], around 1, or around 0 where it means 1+w; None without."""
    if options["weight"] == "none":
        return None
    shape = (D,) if options["weight"] == "shared" else (heads, D)
    base = 0.0 if options["zero_centered"] else 1.0
    return (base + 0.5 * noise(seed, *shape)).astype(np.float32).astype(float)


def effective(stored, options, heads):
    stored = np.ones((heads, D)) if stored is None else stored
    return np.broadcast_to(stored + (1.0 if options["zero_centered"] else 0.0), (heads, D))


def variants():
    for kind in ["rms", "layer", "l2"]:
        for scope, weight in [("head", "none"), ("head", "shared"), ("head", "per_head"),
                              ("full", "none"), ("full", "per_head")]:
            options = {"kind": kind, "scope": scope, "weight": weight, "eps": 1e-12 if kind == "l2" else 1e-6}
            yield options | {"zero_centered": False}
            if weight != "none":
                yield options | {"zero_centered": True}


def adversarial(seed, heads):
    """Rows: ordinary, large, outliers of 1e4, one feature alone, tiny, zero (nearly, in head 1), equal, alternating."""
    x = noise(seed, 8, heads, D)
    x[1] *= 1e4
    x[2, :, 1], x[2, 0, 4] = 1e4, -1e4
    x[3] = 0.0
    x[3, :, 2] = 9999.0
    x[4] *= 1e-3
    x[5] = 0.0
    x[5, 1, 0] = 1e-13  # below the floor of l2
    x[6] = 7.0
    x[7] = 1e4 * (-1.0) ** np.arange(D)
    return x.astype(np.float32).astype(float)


def check_backward(x, gain, dy, options):
    """backward() against automatic differentiation, and dx . x of rms, away from rows of (nearly) zero length."""
    rows = [0, 1, 2, 3, 4, 7]
    dx = backward(x, gain, dy, options)[0][rows]
    node = tape.Node(x[rows])
    statistic = node if options["scope"] == "head" else node.reshape(len(rows), 1, -1)
    y = NORMS[options["kind"]](statistic, options["eps"]).reshape(*node.shape)
    expected = tape.gradients((y * gain * dy[rows]).sum(), [node])[0]
    allowed = 1e-10 * np.abs(expected).max(axis=(1, 2), keepdims=True) + 1e-15
    assert (np.abs(dx - expected) <= allowed).all(), options
    if options["kind"] == "rms":
        statistic, products = grouped(x[rows], options["scope"]), grouped((gain * dy * x)[rows], options["scope"])
        mean_and_eps = (statistic ** 2).mean(-1) + options["eps"]
        along = (grouped(dx, options["scope"]) * statistic).sum(-1)
        expected = products.sum(-1) * options["eps"] / mean_and_eps ** 1.5
        assert (np.abs(along - expected) <= 1e-12 * np.abs(products).sum(-1) / np.sqrt(mean_and_eps)).all(), options


def shared_inputs():
    """The rows every variant is applied to."""
    return {side: {"x": adversarial(seed, heads), "dy": noise(10 + seed, 8, heads, D)}
            for seed, (side, heads) in enumerate([("q", HEADS), ("k", KV_HEADS)])}


def forward_backward(options):
    """One variant on shared_inputs(): outputs and gradients of q and k, nine digits."""
    result = {"options": options}
    for seed, (side, given) in enumerate(shared_inputs().items()):
        x, dy = given["x"], given["dy"]
        stored = stored_gain(options, x.shape[1], 20 + seed)
        gain = effective(stored, options, x.shape[1])
        check_backward(x, gain, dy, options)
        dx, dgain = backward(x, gain, dy, options)
        result[side] = {"weight": stored, "y": nine_digits(forward(x, gain, options)), "dx": nine_digits(dx)}
        if stored is not None:
            result[side]["dweight"] = nine_digits(dgain.sum(0) if options["weight"] == "shared" else dgain)
    return result


# ---- bounds ------------------------------------------------------------------------------------------------------


def bound(options, gains):
    """[H]: what |s| of a head can never pass, from its gains and scale."""
    largest_q = np.abs(gains[0]).max(-1)
    largest_k = np.repeat(np.abs(gains[1]).max(-1), HEADS // KV_HEADS)
    factor = {("l2", "head"): 1.0, ("l2", "full"): 1.0}.get((options["kind"], options["scope"]))
    if factor is None:
        factor = D if options["scope"] == "head" else math.sqrt(HEADS * KV_HEADS) * D
    return np.abs(SCALE) * factor * largest_q * largest_k


def largest_logit(q, k):
    """[H]: the largest |scale * q . k| over all pairs of rows."""
    k = np.repeat(k, HEADS // KV_HEADS, axis=1)
    return np.abs(SCALE[:, None, None] * np.einsum("thd,jhd->htj", q, k)).max(axis=(1, 2))


def bound_case(options, x, stored):
    gains = [effective(stored[0], options, HEADS), effective(stored[1], options, KV_HEADS)]
    limit = bound(options, gains)
    found = largest_logit(forward(x[0], gains[0], options), forward(x[1], gains[1], options))
    assert (found <= limit * (1 + 1e-12)).all(), (options, found, limit)
    return {"options": options, "q_weight": stored[0], "k_weight": stored[1],
            "largest_logit": found, "bound": limit, "share": found / limit}


def adversarial_bound(options):
    stored = [stored_gain(options, HEADS, 20), stored_gain(options, KV_HEADS, 21)]
    return bound_case(options, [given["x"] for given in shared_inputs().values()], stored)


def tight_rows():
    """(q, k). Row h: k = q in head h, with mean 0 within the head, and every other head zero."""
    pattern = np.array([3.0, -3.0, 1.0, -1.0, 2.0, -2.0])
    q, k = np.zeros((HEADS, HEADS, D)), np.zeros((HEADS, KV_HEADS, D))
    for h in range(HEADS):
        q[h, h] = k[h, h // (HEADS // KV_HEADS)] = pattern * 8.0 ** (h + 1)
    return q, k


def tight_bound(options):
    """Equal gains within each head on tight_rows(): the bound is reached."""
    base = 1.0 if options["zero_centered"] else 0.0
    stored = [None, None]
    if options["weight"] == "shared":
        stored = [np.full(D, 1.5 - base), np.full(D, -0.75 - base)]
    elif options["weight"] == "per_head":
        stored = [np.repeat([[0.5], [2.0], [1.25], [3.0]], D, 1) - base, np.repeat([[1.5], [-0.25]], D, 1) - base]
    case = bound_case(options, tight_rows(), stored)
    assert (case["share"] > 1 - 1e-5).all(), (options, case["share"])
    return case


# ---- worked values -----------------------------------------------------------------------------------------------


def worked():
    """Small enough to redo with pencil and paper; `expected` from forward(), `printed` as the documents state it."""
    q, ones = [3.0, 4.0, 0.3, 0.4], [[1.0, 1.0], [1.0, 1.0]]
    rows = [("scope_head", "head", 0.0, q, ones, [0.84853, 1.13137, 0.84853, 1.13137]),
            ("scope_full", "full", 0.0, q, ones, [1.19404, 1.59206, 0.11940, 0.15921]),
            ("per_head_weight", "head", 0.0, q, [[1.0, 1.0], [2.0, 2.0]], [0.84853, 1.13137, 1.69706, 2.26274]),
            ("eps_inside_the_root", "head", 2.0 ** -20, [2.0 ** -10] * 8, [[1.0] * 8], [0.70711] * 8)]
    result = []
    for name, scope, eps, x, gain, printed in rows:
        options, gain = {"kind": "rms", "scope": scope, "eps": eps}, np.array(gain)
        y = forward(np.array(x).reshape(1, *gain.shape), gain, options).reshape(-1)
        assert np.abs(y - printed).max() < 6e-6, (name, y)
        result.append({"name": name} | options | {"heads": len(gain), "head_dim": gain.shape[1], "x": x,
                                                  "weight": gain, "expected": y, "printed": printed})
    return result


def worked_rotation():
    """d = 2, one rotation by 90 degrees: (x1, x2) -> (-x2, x1)."""
    options, x, result = {"kind": "rms", "scope": "head", "eps": 0.0}, np.array([[[1.0, 0.0]]]), []
    for gain, first, printed in [([2.0, 1.0], "norm", [0, 2.82843]), ([2.0, 1.0], "rotation", [0, 1.41421]),
                                 ([1.0, 1.0], "norm", [0, 1.41421]), ([1.0, 1.0], "rotation", [0, 1.41421])]:
        def turn(y): return np.stack([-y[..., 1], y[..., 0]], -1)
        weight = np.array([gain])
        y = turn(forward(x, weight, options)) if first == "norm" else forward(turn(x), weight, options)
        y = y.reshape(-1) + 0.0
        assert np.abs(y - printed).max() < 6e-6, (gain, first, y)
        result.append({"placement": "before_rope" if first == "norm" else "after_rope", "x": [1.0, 0.0],
                       "weight": gain, "quarter_turns": 1, "expected": y, "printed": printed})
    return result


def worked_counts():
    return [{"layers": 80, "heads": 64, "kv_heads": 64, "head_dim": 128, "gains": 80 * (64 + 64) * 128,
             "per_head_scales": 80 * 64},
            {"layers": 80, "heads": 64, "kv_heads": 8, "head_dim": 128, "gains": 80 * (64 + 8) * 128,
             "per_head_scales": 80 * 64}]


def golden():
    return {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": D,
            "worked": worked(), "worked_rotation": worked_rotation(), "worked_counts": worked_counts(),
            "inputs": shared_inputs(), "forward_backward": [forward_backward(options) for options in variants()],
            "scale": SCALE, "bounds": [adversarial_bound(options) for options in variants()],
            "tight_inputs": dict(zip("qk", tight_rows())),
            "tight_bounds": [tight_bound(options) for options in variants()]}


if __name__ == "__main__":
    parts = golden()
    for case in parts["bounds"] + parts["tight_bounds"]:
        print(" ".join(str(v) for v in case["options"].values()), "share of the bound:", np.round(case["share"], 6))
