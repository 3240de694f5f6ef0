"""The golden cases of decoder.py: configs, batches, and the formula of the parameter values."""
import numpy as np

from decoder import Batch, Decoder, is_gain

GAIN_AMPLITUDE = 0.2
POSITIONS = 9  # tokens per row


def model(attention=None, **keys):
    """A small pre-norm, RMS, SwiGLU decoder with grouped heads, d != D/H, changed by the given keys."""
    sizes = {"kind": "decoder", "hidden": 12, "layers": 2, "vocab": 24, "ffn": 16}
    heads = {"heads": 4, "kv_heads": 2, "head_dim": 4} | (attention or {})
    return sizes | keys | {"attention": {key: value for key, value in heads.items() if value is not None}}


def small(attention=None, **keys):
    return model(attention, **({"vocab": 16, "ffn": 8} | keys))


def qk(kind, **keys):
    return {"qk_norm": {"kind": kind} | keys}


def scaled(kind, **keys):
    return {"logit_scale": {"kind": kind} | keys}


def grid():
    """Every kind x scope x weight. Head counts change along the way."""
    shapes = [{}, {"kv_heads": 1}, {"heads": 2, "kv_heads": 2, "head_dim": 6}]
    weights = [("head", "none"), ("head", "shared"), ("head", "per_head"), ("full", "none"), ("full", "per_head")]
    cases = {}
    for i, kind in enumerate(["l2", "rms", "layer"]):
        for j, (scope, weight) in enumerate(weights):
            eps = 1e-12 if kind == "l2" else 1e-6
            attention = shapes[(i + j) % 3] | qk(kind, scope=scope, weight=weight, eps=eps)
            cases[f"{kind}_{scope}_{weight}"] = {"model": small(attention)}
    return cases


def variants():
    """One departure each."""
    learned = {"global": "none", "local": "none", "learned": True, "max_positions": 11}
    some_rope = {"layer_pattern": ["local", "global"], "positions": {"global": "none", "local": "rope"}}
    layer_norm = {"kind": "layer", "eps": 1e-5}
    shared = {"weight": "shared"}
    models = {
        "baseline": model(qk("none")),
        "baseline_one_kv_head": model(qk("none") | {"kv_heads": 1}),
        "baseline_defaults": model(qk("none") | {"heads": 2, "kv_heads": None, "head_dim": None}),  # G = H, d = D/H
        "rms_zero_centered": small(qk("rms", zero_centered=True)),
        "rms_full_zero_centered": small(qk("rms", scope="full", zero_centered=True)),
        "layer_zero_centered": small(qk("layer", zero_centered=True, **shared)),
        "rms_large_eps": small(qk("rms", eps=0.05)),
        "rms_after_rope_shared": small(qk("rms", placement="after_rope", **shared)),
        "rms_after_rope_per_head": small(qk("rms", placement="after_rope")),
        "rms_after_rope_full": small(qk("rms", placement="after_rope", scope="full")),
        "layer_after_rope": small(qk("layer", placement="after_rope")),
        "l2_per_layer_scale": small(qk("l2", eps=1e-12) | scaled("per_layer")),
        "l2_fixed_scale": small(qk("l2", eps=1e-12) | scaled("fixed")),
        "l2_log2_length": small(qk("l2", eps=1e-12, weight="none") | scaled("per_layer", init="log2_length", length=7)),
        "rms_per_layer_scale": small(qk("rms") | scaled("per_layer")),
        "rms_number_scale": small(qk("rms") | scaled("fixed", init=0.37)),
        "none_per_head_scale": small(qk("none") | scaled("per_head")),
        "rope_only": small(qk("rms", layers="rope_only", weight="none") | scaled("fixed"), **some_rope),  # Llama 4
        "rope_only_per_head": small(qk("rms", layers="rope_only") | scaled("per_head"), **some_rope),
        "odd_head_dim": small(qk("rms") | {"head_dim": 5}, positions={"global": "none", "local": "none"}),
        "rope_fraction": small(qk("rms") | {"head_dim": 8, "heads": 2}, rope={"fraction": 0.75, "theta": 100.0}),
        "norm_post": small(qk("rms"), norm={"placement": "post", "eps": 0.01}),
        "norm_sandwich": small(qk("rms"), norm={"placement": "sandwich"}),
        "norm_zero_centered": small(qk("rms"), norm={"zero_centered": True, "eps": 1e-3}),
        "norm_layer": small(qk("rms"), norm=layer_norm),
        "norm_layer_post": small(qk("rms"), norm=layer_norm | {"eps": 0.01, "placement": "post"}),
        "mlp_bias": small(qk("rms") | {"bias": {"qkv": True, "output": True}}, mlp={"kind": "swiglu", "bias": True}),
        "geglu": small(qk("rms"), mlp={"kind": "geglu"}),
        "tied_scaled": small(qk("rms"), tie_embeddings=True, embedding_scale=2.5),
        "learned_and_rope": small(qk("rms"), positions=learned | {"global": "rope", "local": "rope"}),
        "window": small(qk("rms") | {"window": 3}, layer_pattern=["local", "global"]),
        "window_of_one": small(qk("rms") | {"window": 1}, layer_pattern=["global", "local"]),
        "logit_softcap": small(qk("rms") | scaled("per_head", init=2.0) | {"logit_softcap": 1.5}),
    }
    return {name: {"model": settings} for name, settings in models.items()}


def wide():
    """Every row and piece of a row a multiple of 8, as in real models: GPUs then take eight elements at a time."""
    both = {"bias": {"qkv": True, "output": True}}
    models = {
        "wide": small(qk("rms") | {"head_dim": 16}, hidden=16, layers=1),
        "wide_fraction": small(qk("layer", weight="shared") | both | {"head_dim": 32, "heads": 2, "kv_heads": 1},
                               hidden=16, layers=1, rope={"fraction": 0.5}, norm={"kind": "layer", "eps": 1e-5},
                               mlp={"kind": "gelu", "bias": True}),
        "wide_full": small(qk("rms", scope="full", placement="after_rope") | {"head_dim": 16, "logit_softcap": 2.0},
                           hidden=16, layers=1, mlp={"kind": "geglu"}, norm={"zero_centered": True},
                           tie_embeddings=True),
    }
    return {name: {"model": settings} for name, settings in models.items()}


def families():
    """Published blocks, reduced."""
    both = {"bias": {"qkv": True, "output": True}}
    return {
        "vit22b_like": {"model": model(
            qk("layer", weight="shared") | scaled("fixed") | {"bias": {"qkv": True}, "kv_heads": 4, "head_dim": 3},
            parallel_block=True, norm={"kind": "layer"}, mlp={"kind": "gelu", "bias": True},
            positions={"global": "none", "local": "none", "learned": True, "max_positions": 9})},
        "gemma3_like": {"model": model(
            qk("rms", weight="shared", zero_centered=True) | scaled("fixed", init=0.35)
            | {"window": 3, "logit_softcap": 2.0},
            norm={"placement": "sandwich", "zero_centered": True}, layer_pattern=["local", "global"],
            mlp={"kind": "geglu"}, tie_embeddings=True, embedding_scale="sqrt_hidden", final_softcap=3.0,
            rope={"theta": 1e6, "local_theta": 1e4})},
        "olmo2_like": {"model": model(qk("rms", scope="full") | scaled("fixed"), norm={"placement": "post"},
                                      rope={"theta": 5e5}),
                       "loss_options": {"z_loss": 1e-3}},
        "qwen3_like": {"model": model(qk("rms", weight="shared") | scaled("fixed"), rope={"theta": 1e6},
                                      tie_embeddings=True)},
        "henry2020_like": {"model": model(
            qk("l2", weight="none", eps=1e-12) | scaled("per_layer", init=3.5) | both | {"kv_heads": 4, "head_dim": 3},
            norm={"kind": "layer", "eps": 1e-5}, mlp={"kind": "gelu", "bias": True},
            positions={"global": "none", "local": "none", "learned": True, "max_positions": 10})},
        "glm45_like": {"model": model(qk("rms", weight="shared", eps=1e-5) | scaled("fixed") | {"bias": {"qkv": True}},
                                      rope={"fraction": 0.5}, norm={"eps": 1e-5})},
    }


def batches():
    """Documents and loss options."""
    # Ids leave out 1: an empty document between two others. Row 1 is one document only.
    documents = [[0, 0, 0, 0, 2, 2, 2, 3, 3], [5] * POSITIONS]
    learned = {"global": "none", "local": "none", "learned": True, "max_positions": 9}
    return {
        "documents": {"model": model(qk("rms")), "documents": documents},
        "documents_window": {"model": small(qk("rms") | {"window": 2}, layer_pattern=["local", "global"]),
                             "documents": documents},
        # Rotation first and unequal gains: only here do positions of RoPE that do not restart show.
        "documents_after_rope": {"model": small(qk("rms", placement="after_rope")), "documents": documents},
        "documents_learned": {"model": small(qk("l2", eps=1e-12), positions=learned), "documents": documents},
        "smoothing_z_softcap": {"model": model(qk("rms"), final_softcap=1.0),
                                "loss_options": {"z_loss": 0.02, "label_smoothing": 0.1}},
        "smoothing": {"model": small(qk("rms")), "loss_options": {"label_smoothing": 0.2}},
    }


def all_cases():
    """name -> {model, loss_options, documents, amplitude}."""
    common = {"loss_options": {}, "documents": None, "amplitude": 0.3}
    cases = grid() | variants() | wide() | families() | batches()
    complete = {name: common | case for name, case in cases.items()}
    for case in complete.values():
        case["loss_options"] = {"z_loss": 0.0, "label_smoothing": 0.0} | case["loss_options"]
    return complete


def batch_of(case):
    """tokens: a walk through the vocabulary; targets: the next token, some of them not counted."""
    vocab = case["model"]["vocab"]
    walk = [[(n * (n + 3) // 2 + 5 * row) % vocab for n in range(POSITIONS + 1)] for row in range(2)]
    tokens = [row[:-1] for row in walk]
    documents = case["documents"] or [[0] * POSITIONS] * 2
    targets = [[-1 if (7 * b + t) % 6 == 2 or (t + 1 < POSITIONS and ids[t] != ids[t + 1]) else row[t + 1]
                for t in range(POSITIONS)] for b, (row, ids) in enumerate(zip(walk, documents))]
    return Batch(tokens, targets, case["documents"])


def parameter_value(name, shape, case):
    """Element i, row-major: base + amplitude * sin(1 + 12.9898*i + 0.61*s), s: sum of the name's bytes; then fp32."""
    amplitude, base = case["amplitude"], 0.0
    if is_gain(name):
        amplitude, base = GAIN_AMPLITUDE, 0.0 if is_zero_centered(name, case["model"]) else 1.0
    i = np.arange(np.prod(shape), dtype=float)
    x = base + amplitude * np.sin(1.0 + 12.9898 * i + 0.61 * sum(name.encode()))
    return x.astype(np.float32).astype(float).reshape(shape)


def is_zero_centered(name, settings):
    if name.endswith("logit_scale.weight"):
        return False
    qk_gain = name.endswith("q_norm.weight") or name.endswith("k_norm.weight")
    options = settings["attention"].get("qk_norm", {}) if qk_gain else settings.get("norm", {})
    return options.get("zero_centered", False)


def build(case):
    """(decoder, parameters by name, batch)."""
    decoder = Decoder(case["model"])
    parameters = {name: parameter_value(name, shape, case) for name, shape in decoder.parameter_shapes().items()}
    return decoder, parameters, batch_of(case)
