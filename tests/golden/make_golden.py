#!/usr/bin/env python3
"""Writes every golden file of this folder; README.md says what they hold. Running it again on
the same machine changes no byte; other machines' sums round otherwise."""
import sys

import numpy as np

import henry_block
import optimizer
import qk_norm
from cases import all_cases, build
from json_file import nine_digits, write

LOGITS_AT = [[0, 0, 0], [0, 4, 1], [0, 8, 15], [1, 0, 7], [1, 3, 12], [1, 8, 9]]  # batch row, position, token


def rounding(decoder, parameters, batch, case, gradients):
    """How far each gradient moves, by norm, when every parameter moves by one rounding to fp32, the most of four draws:
    what arithmetic in fp32, which rounds at every step, cannot be asked to do much better than."""
    random = np.random.default_rng(0)
    most = dict.fromkeys(gradients, 0.0)
    for _ in range(4):
        moved = {name: x * (1 + 2.0 ** -24 * random.standard_normal(x.shape)) for name, x in parameters.items()}
        changed = decoder.loss_and_gradients(moved, batch, case["loss_options"])["gradients"]
        most = {name: max(most[name], float(np.linalg.norm(changed[name] - gradients[name]))) for name in gradients}
    return most


def decoder_golden(case):
    decoder, parameters, batch = build(case)
    result = decoder.loss_and_gradients(parameters, batch, case["loss_options"])
    logits = result["logits"]
    return {
        "model": case["model"], "loss_options": case["loss_options"],
        "tokens": batch.tokens, "targets": batch.targets, "documents": case["documents"],
        "parameters": {name: list(array.shape) for name, array in parameters.items()},
        "amplitude": case["amplitude"],
        "loss": result["loss"], "z_loss": result["z_loss"],
        "logits_checksum": {"at": LOGITS_AT, "values": [logits[tuple(at)] for at in LOGITS_AT],
                            "root_mean_square": np.sqrt((logits ** 2).mean())},
        "largest_logit": result["largest_logit"], "entropy": result["entropy"],
        "rounding": {name: nine_digits(np.array([value]))[0]
                     for name, value in rounding(decoder, parameters, batch, case, result["gradients"]).items()},
        "gradients": {name: nine_digits(gradient) for name, gradient in result["gradients"].items()}}


def main():
    for name, case in all_cases().items():
        write(f"decoder/{name}.json", decoder_golden(case))
    write("qk_norm.json", qk_norm.golden())
    write("henry_block.json", henry_block.golden())
    write("adamw.json", optimizer.adamw_golden())
    write("schedule.json", optimizer.schedule_golden())
    return 0


if __name__ == "__main__":
    sys.exit(main())
