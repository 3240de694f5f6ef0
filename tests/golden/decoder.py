#!/usr/bin/env python3
"""The decoder-only transformer in float64: loss, and by tape.py the gradient of every parameter.

Written from the formulas alone, as a judge of the C++ layers; forward formulas only, they run on arrays or tape nodes.
Shapes: x [B,T,D], q [B,T,H,d], k and v [B,T,G,d], logits of attention [B,H,T,T], logits of the head [B,T,V].

  decoder.py --check [CASE ...]                       every parameter of the golden cases by differences
  decoder.py --checkpoint FILE.h5 --batch FILE.json   loss and gradients from a checkpoint
"""
import argparse
import math
import sys

import numpy as np

from tape import Node, concatenate, exp, gradients, log, select, sqrt, tanh, value

REQUIRED = object()
DEFAULTS = {
    "kind": "decoder", "hidden": REQUIRED, "layers": REQUIRED, "vocab": REQUIRED, "ffn": REQUIRED,
    "pad_vocab_to": 1,  # golden cases have no padding
    "tie_embeddings": False, "embedding_scale": "none", "final_softcap": None, "parallel_block": False,
    "layer_pattern": ["global"],
    "norm": {"kind": "rms", "eps": 1e-6, "zero_centered": False, "placement": "pre"},
    "attention": {
        "heads": REQUIRED, "kv_heads": None, "head_dim": None, "logit_softcap": None, "window": None,
        "bias": {"qkv": False, "output": False},
        "qk_norm": {"kind": "none", "scope": "head", "weight": "per_head", "zero_centered": False, "eps": 1e-6,
                    "placement": "before_rope", "layers": "all"},
        "logit_scale": {"kind": "auto", "init": "auto", "length": None}},
    "positions": {"global": "rope", "local": "rope", "learned": False, "max_positions": None},
    "rope": {"theta": 1e4, "local_theta": None, "fraction": 1.0, "scaling": {"kind": "none"}},
    "mlp": {"kind": "swiglu", "bias": False}}
# Keys of a full config that change no formula here: initial values, rounding, and what happens after an update.
WITHOUT_EFFECT = {"preset", "init", "weight_init", "cast", "weight_decay", "clip_weight", "clip", "residual", "recompute",
                  "embedding_decay",
                  # of a scaling, which is refused unless its kind is none
                  "factor", "low_frequency_factor", "high_frequency_factor", "original_positions", "beta_fast",
                  "beta_slow", "attention_factor"}


def with_defaults(given, defaults=DEFAULTS, path="model"):
    """The config with every key present; a key that this file does not know is refused unless it is null."""
    for key, setting in given.items():
        if key not in defaults and key not in WITHOUT_EFFECT and setting is not None:
            raise ValueError(f"{path}.{key}: unknown to decoder.py, so its loss could be wrong")
    complete = {}
    for key, default in defaults.items():
        if isinstance(default, dict):
            complete[key] = with_defaults(given.get(key) or {}, default, f"{path}.{key}")
        else:
            complete[key] = given.get(key, default)
        if complete[key] is REQUIRED:
            raise ValueError(f"{path}.{key}: missing")
    return complete


def resolve(model):
    """The config with defaults that depend on other keys filled in."""
    model = with_defaults(model)
    attention, rope = model["attention"], model["rope"]
    if rope["scaling"]["kind"] != "none":
        raise ValueError("model.rope.scaling: unknown to decoder.py, so its loss could be wrong")
    attention["kv_heads"] = given(attention["kv_heads"], attention["heads"])
    attention["head_dim"] = given(attention["head_dim"], model["hidden"] // attention["heads"])
    rope["local_theta"] = given(rope["local_theta"], rope["theta"])
    return model


def given(setting, default):
    """A setting that may be absent, or `auto` in a resolved config."""
    return default if setting in [None, "auto"] else setting


def is_gain(name):
    return name.endswith("norm.weight") or name.endswith("logit_scale.weight")


# ---- norms -------------------------------------------------------------------------------------------------------


def rms_norm(x, eps):
    return x / sqrt((x * x).mean(axis=-1, keepdims=True) + eps)


def layer_norm(x, eps):
    return rms_norm(x - x.mean(axis=-1, keepdims=True), eps)


def l2_norm(x, eps):
    """x / max(|x|, eps). Below the floor this is the true derivative; Keel uses 0 there, so cases stay above it."""
    length = sqrt((x * x).sum(axis=-1, keepdims=True))
    return x / select(value(length).real > eps, length, eps)


NORMS = {"rms": rms_norm, "layer": layer_norm, "l2": l2_norm}


def gain(weight, zero_centered):
    return 1.0 + weight if zero_centered else weight


# ---- small formulas ----------------------------------------------------------------------------------------------


def silu(x):
    return x / (1.0 + exp(-x))


def gelu(x):
    return 0.5 * x * (1.0 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))


def softcap(x, cap):
    return x if cap is None else cap * tanh(x / cap)


def softmax(s, allowed):
    """Over the last dimension, among the allowed entries. The maximum is subtracted as a constant."""
    maximum = np.where(allowed, value(s).real, -np.inf).max(axis=-1, keepdims=True)
    e = select(allowed, exp(select(allowed, s - maximum, 0.0)), 0.0)
    return e / e.sum(axis=-1, keepdims=True)


def log_sum_exp(x):
    maximum = value(x).real.max(axis=-1, keepdims=True)
    return log(exp(x - maximum).sum(axis=-1)) + maximum[..., 0]


def rotate(x, positions, theta, width):
    """RoPE on the first `width` features, pair (i, i + width/2), angle position * theta^(-2i/width)."""
    half = width // 2
    angle = positions[:, :, None, None] * theta ** (-2.0 * np.arange(half) / width)
    x1, x2 = x[..., :half], x[..., half:width]
    cos, sin = np.cos(angle), np.sin(angle)
    return concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin, x[..., width:]])


def restarting_positions(documents):
    """Position within its document: 0 wherever the id changes."""
    positions = np.zeros(documents.shape, int)
    for t in range(1, documents.shape[1]):
        positions[:, t] = np.where(documents[:, t] == documents[:, t - 1], positions[:, t - 1] + 1, 0)
    return positions


class Batch:
    """tokens [B,T], targets [B,T] (-1: not counted), documents [B,T] or None (one document per row)."""

    def __init__(self, tokens, targets, documents=None):
        self.tokens, self.targets = np.array(tokens), np.array(targets)
        self.documents = np.zeros_like(self.tokens) if documents is None else np.array(documents)
        self.positions = restarting_positions(self.documents)

    def allowed(self, window):
        """[B,1,T,T]: may row t see column j? window counts the current token."""
        distance = np.arange(self.tokens.shape[1])[:, None] - np.arange(self.tokens.shape[1])[None, :]
        near = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        return (near & (self.documents[:, :, None] == self.documents[:, None, :]))[:, None]


# ---- the model ---------------------------------------------------------------------------------------------------


class Decoder:
    def __init__(self, model):
        self.model = resolve(model)
        self.attention_options = self.model["attention"]
        self.largest_logit, self.entropy = [], []  # [L][H], of the last forward pass

    # What a layer is made of.

    def layer_kind(self, layer):
        pattern = self.model["layer_pattern"]
        return pattern[layer % len(pattern)]

    def has_rope(self, layer):
        return self.model["positions"][self.layer_kind(layer)] == "rope"

    def qk_norm_kind(self, layer):
        options = self.attention_options["qk_norm"]
        return "none" if options["layers"] == "rope_only" and not self.has_rope(layer) else options["kind"]

    def logit_scale_kind(self, layer):
        kind = self.attention_options["logit_scale"]["kind"]
        return kind if kind != "auto" else "fixed" if self.qk_norm_kind(layer) == "none" else "per_head"

    def initial_logit_scale(self, layer):
        """g0 of s = g0 * w * (q . k)."""
        options, scale = self.attention_options, self.attention_options["logit_scale"]
        heads, kv_heads, d = options["heads"], options["kv_heads"], options["head_dim"]
        if scale["init"] == "log2_length":
            return math.log2(scale["length"] ** 2 - scale["length"])
        if scale["init"] != "auto":
            return float(scale["init"])
        if self.qk_norm_kind(layer) != "l2":
            return 1 / math.sqrt(d)
        return math.sqrt(d * heads * kv_heads if options["qk_norm"]["scope"] == "full" else d)

    def norm_names(self, layer):
        prefix, placement = f"blocks.{layer}.", self.model["norm"]["placement"]
        before = ["attention_norm"] if self.model["parallel_block"] else ["attention_norm", "mlp_norm"]
        after = ["attention_post_norm", "mlp_post_norm"]
        names = {"pre": before, "post": after, "sandwich": before + after}[placement]
        return [prefix + name for name in names]

    def parameter_shapes(self):
        model = self.model
        hidden, vocab = model["hidden"], -(-model["vocab"] // model["pad_vocab_to"]) * model["pad_vocab_to"]
        shapes = {"embedding.weight": [vocab, hidden]}
        if model["positions"]["learned"]:
            shapes["position_embedding.weight"] = [model["positions"]["max_positions"], hidden]
        for layer in range(model["layers"]):
            shapes |= self.norm_shapes(self.norm_names(layer))
            shapes |= self.attention_shapes(layer) | self.mlp_shapes(layer)
        shapes |= self.norm_shapes(["final_norm"])
        if not model["tie_embeddings"]:
            shapes["head.weight"] = [vocab, hidden]
        return shapes

    def norm_shapes(self, names):
        ends = ["weight", "bias"] if self.model["norm"]["kind"] == "layer" else ["weight"]
        return {f"{name}.{end}": [self.model["hidden"]] for name in names for end in ends}

    def attention_shapes(self, layer):
        options, prefix, hidden = self.attention_options, f"blocks.{layer}.attention.", self.model["hidden"]
        heads, kv_heads, d = options["heads"], options["kv_heads"], options["head_dim"]
        shapes = {}
        for name, count in {"q": heads, "k": kv_heads, "v": kv_heads}.items():
            shapes |= linear_shapes(prefix + name, count * d, hidden, options["bias"]["qkv"])
        if self.qk_norm_kind(layer) != "none" and options["qk_norm"]["weight"] != "none":
            shared = options["qk_norm"]["weight"] == "shared"
            shapes[prefix + "q_norm.weight"] = [d] if shared else [heads, d]
            shapes[prefix + "k_norm.weight"] = [d] if shared else [kv_heads, d]
        if self.logit_scale_kind(layer) != "fixed":
            shapes[prefix + "logit_scale.weight"] = [1 if self.logit_scale_kind(layer) == "per_layer" else heads]
        return shapes | linear_shapes(prefix + "output", hidden, heads * d, options["bias"]["output"])

    def mlp_shapes(self, layer):
        prefix, hidden, width = f"blocks.{layer}.mlp.", self.model["hidden"], self.model["ffn"]
        bias, shapes = self.model["mlp"]["bias"], {}
        for name in ["up"] if self.model["mlp"]["kind"] == "gelu" else ["gate", "up"]:
            shapes |= linear_shapes(prefix + name, width, hidden, bias)
        return shapes | linear_shapes(prefix + "down", hidden, width, bias)

    # Formulas. p: the parameters by name, arrays or tape nodes.

    def linear(self, x, p, name):
        y = x @ p[name + ".weight"].T
        return y + p[name + ".bias"] if name + ".bias" in p else y

    def norm(self, x, p, name):
        options = self.model["norm"]
        y = NORMS[options["kind"]](x, options["eps"]) * gain(p[name + ".weight"], options["zero_centered"])
        return y + p[name + ".bias"] if options["kind"] == "layer" else y

    def qk_norm(self, x, p, name):
        options, shape = self.attention_options["qk_norm"], x.shape
        if options["scope"] == "full":
            x = x.reshape(*shape[:2], 1, shape[2] * shape[3])
        y = NORMS[options["kind"]](x, options["eps"]).reshape(*shape)
        return y if options["weight"] == "none" else y * gain(p[name + ".weight"], options["zero_centered"])

    def rope(self, x, positions, layer):
        theta = self.model["rope"]["local_theta" if self.layer_kind(layer) == "local" else "theta"]
        return rotate(x, positions, theta, round(self.model["rope"]["fraction"] * x.shape[-1]))

    def normalized_and_rotated(self, x, p, name, layer, positions):
        steps = []
        if self.qk_norm_kind(layer) != "none":
            steps.append(lambda x: self.qk_norm(x, p, name))
        if self.has_rope(layer):
            steps.append(lambda x: self.rope(x, positions, layer))
        if self.attention_options["qk_norm"]["placement"] == "after_rope":
            steps.reverse()
        for step in steps:
            x = step(x)
        return x

    def attention(self, x, p, layer, batch):
        options, prefix = self.attention_options, f"blocks.{layer}.attention."
        heads, kv_heads, d = options["heads"], options["kv_heads"], options["head_dim"]
        rows = x.shape[:2]
        q = self.linear(x, p, prefix + "q").reshape(*rows, heads, d)
        k = self.linear(x, p, prefix + "k").reshape(*rows, kv_heads, d)
        v = self.linear(x, p, prefix + "v").reshape(*rows, kv_heads, d)
        q = self.normalized_and_rotated(q, p, prefix + "q_norm", layer, batch.positions)
        k = self.normalized_and_rotated(k, p, prefix + "k_norm", layer, batch.positions)

        served_by = np.arange(heads) // (heads // kv_heads)  # query head -> its KV head
        q = q.transpose(0, 2, 1, 3)
        k = k[:, :, served_by].transpose(0, 2, 3, 1)
        v = v[:, :, served_by].transpose(0, 2, 1, 3)
        g = self.initial_logit_scale(layer)
        if self.logit_scale_kind(layer) != "fixed":
            g = (g * p[prefix + "logit_scale.weight"]).reshape(-1, 1, 1)
        s = g * (q @ k)
        allowed = batch.allowed(options["window"] if self.layer_kind(layer) == "local" else None)
        probability = softmax(softcap(s, options["logit_softcap"]), allowed)
        self.observe(value(s), value(probability), allowed)
        y = (probability @ v).transpose(0, 2, 1, 3).reshape(*rows, heads * d)
        return self.linear(y, p, prefix + "output")

    def observe(self, s, probability, allowed):
        """Per head: the largest |s| over allowed pairs, and the mean entropy (natural logarithm) of the rows."""
        self.largest_logit.append(np.where(allowed, np.abs(s), 0.0).max(axis=(0, 2, 3)))
        positive = np.where(probability.real > 0, probability.real, 1.0)
        self.entropy.append(np.abs((positive * np.log(positive)).sum(axis=-1).mean(axis=(0, 2))))

    def mlp(self, x, p, layer):
        prefix, kind = f"blocks.{layer}.mlp.", self.model["mlp"]["kind"]
        up = self.linear(x, p, prefix + "up")
        if kind == "gelu":
            return self.linear(gelu(up), p, prefix + "down")
        gate = self.linear(x, p, prefix + "gate")
        return self.linear((silu(gate) if kind == "swiglu" else gelu(gate)) * up, p, prefix + "down")

    def block(self, x, p, layer, batch):
        prefix, placement = f"blocks.{layer}.", self.model["norm"]["placement"]
        if self.model["parallel_block"]:
            y = self.norm(x, p, prefix + "attention_norm")
            return x + self.attention(y, p, layer, batch) + self.mlp(y, p, layer)
        for name, part in [("attention", lambda y: self.attention(y, p, layer, batch)),
                           ("mlp", lambda y: self.mlp(y, p, layer))]:
            y = x if placement == "post" else self.norm(x, p, f"{prefix}{name}_norm")
            y = part(y)
            x = x + (y if placement == "pre" else self.norm(y, p, f"{prefix}{name}_post_norm"))
        return x

    def logits(self, p, batch):
        self.largest_logit, self.entropy = [], []
        scale = self.model["embedding_scale"]
        scale = {None: 1.0, "none": 1.0, "sqrt_hidden": math.sqrt(self.model["hidden"])}.get(scale, scale)
        x = scale * p["embedding.weight"][batch.tokens]
        if self.model["positions"]["learned"]:
            x = x + p["position_embedding.weight"][batch.positions]
        for layer in range(self.model["layers"]):
            x = self.block(x, p, layer, batch)
        x = self.norm(x, p, "final_norm")
        head = p["embedding.weight" if self.model["tie_embeddings"] else "head.weight"]
        head = head[np.arange(self.model["vocab"])]  # rows of padding have no probability
        return softcap(x @ head.T, self.model["final_softcap"])

    def losses(self, p, batch, options):
        """(loss, z-loss, logits). options: {z_loss, label_smoothing}."""
        logits = self.logits(p, batch)
        lse, counted = log_sum_exp(logits), batch.targets >= 0
        row, column = np.indices(batch.targets.shape)
        cross_entropy = lse - logits[row, column, np.where(counted, batch.targets, 0)]
        smoothing = options.get("label_smoothing", 0.0)
        per_token = (1 - smoothing) * cross_entropy + smoothing * (lse - logits.mean(axis=-1))
        share = counted / max(counted.sum(), 1)
        return (per_token * share).sum(), options.get("z_loss", 0.0) * (lse * lse * share).sum(), logits

    def loss_and_gradients(self, parameters, batch, options):
        """A dict: loss, z_loss, logits, gradients of loss + z_loss by name, largest_logit, entropy."""
        nodes = {name: Node(np.asarray(array, float)) for name, array in parameters.items()}
        loss, z_loss, logits = self.losses(nodes, batch, options)
        found = gradients(loss + z_loss, list(nodes.values()))
        return {"loss": float(value(loss)), "z_loss": float(value(z_loss)), "logits": value(logits),
                "gradients": dict(zip(nodes, found)),
                "largest_logit": np.array(self.largest_logit), "entropy": np.array(self.entropy)}


def linear_shapes(name, outputs, inputs, bias):
    return {name + ".weight": [outputs, inputs]} | ({name + ".bias": [outputs]} if bias else {})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", nargs="*", metavar="CASE", help="golden cases to check by differences; none: all")
    what.add_argument("--checkpoint", metavar="FILE.h5")
    parser.add_argument("--batch", metavar="FILE.json", help="tokens, targets and perhaps documents, loss_options")
    parser.add_argument("--out", metavar="FILE.json", help="with --checkpoint: where all gradients go")
    arguments = parser.parse_args()
    if arguments.check is not None:
        import check
        return check.run(arguments.check)
    if arguments.batch is None:
        parser.error("--checkpoint needs --batch FILE.json")
    import checkpoint
    return checkpoint.run(arguments.checkpoint, arguments.batch, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
