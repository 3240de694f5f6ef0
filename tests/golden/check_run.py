#!/usr/bin/env python3
"""One step of `keel train`, from its checkpoint and its metrics, against the same step in float64.

The data is exactly one batch, so the order of the samples does not matter. A few steps move the weights away from their
initial values; one more, resumed at a learning rate of nearly nothing and saved in parts, leaves them there. With beta1 = 0
the checkpoint's first moment is then the gradient at its weights.

  check_run.py KEEL FOLDER     KEEL is the program, FOLDER is written to
"""
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77  # what CTest counts as skipped
missing = [name for name in ["numpy", "h5py", "yaml"] if importlib.util.find_spec(name) is None]
if missing:
    print(f"skipped: {', '.join(missing)} not found (Debian: python3-numpy python3-h5py python3-yaml)")
    sys.exit(SKIPPED)

import numpy as np

import checkpoint
from decoder import Batch, Decoder

T, SEQUENCES, VOCABULARY = 12, 4, 40
STEPS = 8
TOLERANCE, FLOOR = 1e-5, 1e-9  # of a tensor's norm, and of the norm of all gradients; fp32
CONFIG = """
precision: fp32
model:
  kind: decoder
  hidden: 32
  layers: 2
  ffn: 48
  vocab: {vocabulary}
  attention: {{heads: 4, kv_heads: 2, head_dim: 6, qk_norm: {{{qk_norm}}}, logit_scale: {{{logit_scale}}}}}
data: {{train: tokens.npy, sequence_length: {T}}}
batch: {{sequences: {sequences}, micro_sequences: 2}}
optimizer: {{lr: 3e-2, beta1: 0, clip_norm: null, weight_decay: 0}}
schedule: {{kind: constant, warmup_steps: 0}}
train: {{steps: {steps}, z_loss: 1e-3}}
"""
# Kind and scope, and what else differs.
RUNS = {
    "rms_head": ("kind: rms", ""),
    "rms_full": ("kind: rms, scope: full", ""),
    "l2_head": ("kind: l2, weight: shared, eps: 1e-12", ""),
    "l2_full": ("kind: l2, scope: full, weight: none, eps: 1e-12", ""),
    "layer_head": ("kind: layer, zero_centered: true", "kind: per_layer"),
    "layer_full": ("kind: layer, scope: full, placement: before_rope", ""),
    "none": ("kind: none", "kind: fixed"),
}


def train(keel, folder, name):
    """(checkpoint, metrics of its step) of one run."""
    qk_norm, logit_scale = RUNS[name]
    (folder / f"{name}.yaml").write_text(CONFIG.format(
        vocabulary=VOCABULARY, T=T, sequences=SEQUENCES, steps=STEPS, qk_norm=qk_norm, logit_scale=logit_scale))
    for changes in [[], [f"train.steps={STEPS + 1}", "optimizer.lr=1e-30", "checkpoint.parts=2"]]:
        done = subprocess.run([keel, "train", f"{name}.yaml"] + changes, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{name}: keel train ended with {done.returncode}: {done.stdout}{done.stderr}")
    run = folder / "runs" / name
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return run / f"checkpoints/step-{STEPS + 1:08}.h5", [line for line in lines if "loss" in line][-1]


def compare(name, file, metrics, tokens):
    config, weights = checkpoint.read(file)
    moments = checkpoint.read(file, "/moment1")[1]
    rows = np.lib.stride_tricks.sliding_window_view(tokens, T + 1)[::T]
    assert rows.shape == (SEQUENCES, T + 1)
    decoder = Decoder(config["model"])
    weights = checkpoint.checked(weights, decoder.parameter_shapes(), file)
    options = {"z_loss": config["train"]["z_loss"], "label_smoothing": 0.0}
    expected = decoder.loss_and_gradients(weights, Batch(rows[:, :-1].tolist(), rows[:, 1:].tolist()), options)
    norm = np.sqrt(sum((gradient ** 2).sum() for gradient in expected["gradients"].values()))
    worst = 0.0
    for key, gradient in expected["gradients"].items():
        assert weights[key].size == 1 or not np.all(weights[key] == weights[key].flat[0]), f"{key} never moved"
        error = np.linalg.norm(moments[key] - gradient)
        worst = max(worst, error / (TOLERANCE * np.linalg.norm(gradient) + FLOOR * norm))
    errors = {"loss": abs(metrics["loss"] - expected["loss"]) / (TOLERANCE * expected["loss"]),
              "gradient_norm": abs(metrics["gradient_norm"] - norm) / (TOLERANCE * norm),
              "gradients": worst}
    print(name, "error / tolerance:", ", ".join(f"{key} {value:.3f}" for key, value in errors.items()))
    return max(errors.values()) <= 1


def main():
    keel, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, SEQUENCES * T + 1).astype(np.int32)
    np.save(folder / "tokens.npy", tokens)
    failed = [name for name in RUNS if not compare(name, *train(keel, folder, name), tokens)]
    return f"differ: {', '.join(failed)}" if failed else 0


if __name__ == "__main__":
    sys.exit(main())
