#!/usr/bin/env python3
"""The attention of the note "Query-Key Normalization" (after Henry et al. 2020, arXiv 2010.04245), backward by hand.

  q = RMS(x W_q^T) * gamma_q[h]   k = RMS(x W_k^T) * gamma_k[h]   v = x W_v^T         per head, width d
  s[h,t,j] = g[h] * (q . k)       p = softmax of s over j (or j <= t with the mask)   y = (p v) W_o^T
No rotation, no grouped heads, no biases. It shares no formula with decoder.py; the main program compares them.
"""
import numpy as np

B, T, D, H, HEAD_DIM, EPS = 2, 5, 6, 3, 4, 1e-6
SHAPES = {"x": (B, T, D), "w_q": (H * HEAD_DIM, D), "w_k": (H * HEAD_DIM, D), "w_v": (H * HEAD_DIM, D),
          "w_o": (D, H * HEAD_DIM), "gamma_q": (H, HEAD_DIM), "gamma_k": (H, HEAD_DIM), "g": (H,)}


def inputs():
    """Repeatable values that fp32 holds exactly."""
    def wave(seed, shape):
        i = np.arange(np.prod(shape), dtype=float)
        return np.sin(0.9 * seed + 1.7 * i + 0.013 * i * i).astype(np.float32).astype(float).reshape(shape)
    values = {name: wave(seed, shape) for seed, (name, shape) in enumerate(SHAPES.items())}
    for name, base, amplitude in [("gamma_q", 1.0, 0.25), ("gamma_k", 1.0, 0.25), ("g", 1.0, 0.5)]:
        values[name] = (base + amplitude * values[name]).astype(np.float32).astype(float)
    return values, wave(20, (B, T, D))


def forward(p, causal):
    """(y, everything backward needs)."""
    saved = {}
    for name in ["q", "k"]:
        raw = np.einsum("btc,hdc->bthd", p["x"], p["w_" + name].reshape(H, HEAD_DIM, D))
        saved["r_" + name] = 1 / np.sqrt(np.einsum("bthd,bthd->bth", raw, raw) / HEAD_DIM + EPS)[..., None]
        saved["hat_" + name] = raw * saved["r_" + name]
        saved[name] = saved["hat_" + name] * p["gamma_" + name]
    saved["v"] = np.einsum("btc,hdc->bthd", p["x"], p["w_v"].reshape(H, HEAD_DIM, D))
    saved["cosine"] = np.einsum("bthd,bjhd->bhtj", saved["q"], saved["k"])  # q . k, before the scale
    e = np.exp(p["g"][:, None, None] * saved["cosine"])  # |s| is bounded: no maximum to subtract
    if causal:
        e = e * np.tril(np.ones((T, T)))
    saved["p"] = e / e.sum(-1, keepdims=True)
    saved["mixed"] = np.einsum("bhtj,bjhd->bthd", saved["p"], saved["v"])
    return np.einsum("bthd,chd->btc", saved["mixed"], p["w_o"].reshape(D, H, HEAD_DIM)), saved


def backward(p, saved, dy):
    """Gradients of sum(dy * y) by name."""
    out = {"w_o": np.einsum("btc,bthd->chd", dy, saved["mixed"]).reshape(SHAPES["w_o"])}
    d_mixed = np.einsum("btc,chd->bthd", dy, p["w_o"].reshape(D, H, HEAD_DIM))
    d_p = np.einsum("bthd,bjhd->bhtj", d_mixed, saved["v"])
    d_s = saved["p"] * (d_p - (d_p * saved["p"]).sum(-1, keepdims=True))
    out["g"] = np.einsum("bhtj,bhtj->h", d_s, saved["cosine"])
    d_cosine = d_s * p["g"][:, None, None]
    d_projected = {"q": np.einsum("bhtj,bjhd->bthd", d_cosine, saved["k"]),
                   "k": np.einsum("bhtj,bthd->bjhd", d_cosine, saved["q"]),
                   "v": np.einsum("bhtj,bthd->bjhd", saved["p"], d_mixed)}
    for name in ["q", "k"]:
        hat, d_normalized = saved["hat_" + name], d_projected[name]
        out["gamma_" + name] = (d_normalized * hat).sum((0, 1))
        d_hat = d_normalized * p["gamma_" + name]
        d_projected[name] = saved["r_" + name] * (d_hat - hat * (d_hat * hat).mean(-1, keepdims=True))
    out["x"] = 0.0
    for name, gradient in d_projected.items():
        weight = p["w_" + name].reshape(H, HEAD_DIM, D)
        out["w_" + name] = np.einsum("bthd,btc->hdc", gradient, p["x"]).reshape(SHAPES["w_" + name])
        out["x"] = out["x"] + np.einsum("bthd,hdc->btc", gradient, weight)
    return {name: out[name] for name in SHAPES}


def golden():
    values, dy = inputs()
    result = {"batch": B, "tokens": T, "hidden": D, "heads": H, "head_dim": HEAD_DIM, "eps": EPS,
              "inputs": values, "dy": dy}
    for name, causal in [("without_mask", False), ("causal", True)]:
        y, saved = forward(values, causal)
        s = values["g"][:, None, None] * saved["cosine"]
        allowed = np.tril(np.ones((T, T), bool)) if causal else np.ones((T, T), bool)
        result[name] = {"y": y, "largest_logit": np.where(allowed, np.abs(s), 0).max((0, 2, 3)),
                        "gradients": backward(values, saved, dy)}
    return result


# ---- checks ------------------------------------------------------------------------------------------------------


def complex_step_error(causal):
    """Largest difference between backward() and Im f(x + ih)/h, every element."""
    values, dy = inputs()
    exact, worst = backward(values, forward(values, causal)[1], dy), 0.0
    for name, array in values.items():
        changed = values | {name: array.astype(complex)}
        for i in range(array.size):
            changed[name].flat[i] += 1e-30j
            estimate = (dy * forward(changed, causal)[0]).sum().imag / 1e-30
            changed[name].flat[i] = array.flat[i]
            worst = max(worst, abs(estimate - exact[name].flat[i]))
    return worst


def decoder_error():
    """Largest difference to the attention of decoder.py with the same weights, causal, forward and backward."""
    import tape
    from decoder import Batch, Decoder
    values, dy = inputs()
    attention = {"heads": H, "head_dim": HEAD_DIM, "qk_norm": {"kind": "rms", "eps": EPS},
                 "logit_scale": {"kind": "per_head", "init": 1.0}}
    decoder = Decoder({"hidden": D, "layers": 1, "vocab": 2, "ffn": 1, "attention": attention,
                       "positions": {"global": "none"}})
    names = {"w_q": "q", "w_k": "k", "w_v": "v", "w_o": "output", "gamma_q": "q_norm", "gamma_k": "k_norm",
             "g": "logit_scale"}
    nodes = {name: tape.Node(array) for name, array in values.items()}
    p = {f"blocks.0.attention.{long}.weight": nodes[short] for short, long in names.items()}
    y = decoder.attention(nodes["x"], p, 0, Batch(np.zeros((B, T), int), np.zeros((B, T), int)))
    found = tape.gradients((y * dy).sum(), list(nodes.values()))
    expected, saved = forward(values, causal=True)
    exact = backward(values, saved, dy)
    return max([np.abs(y.value - expected).max()] + [np.abs(a - exact[n]).max() for n, a in zip(nodes, found)])


def main():
    errors = {"complex step, without mask": complex_step_error(False), "complex step, causal": complex_step_error(True),
              "decoder.py, causal": decoder_error()}
    for name, error in errors.items():
        print(f"{name}: {error:.1e}")
    return 0 if max(errors.values()) < 1e-13 else 1


if __name__ == "__main__":
    raise SystemExit(main())
