"""Checks the gradients of decoder.py: every element of every parameter of the golden cases, two ways."""
import sys

import numpy as np

from cases import all_cases, build

STEP = 1e-5
COMPLEX_STEP = 1e-30
TOLERANCE = 1e-6  # central differences: truncation and rounding
COMPLEX_TOLERANCE = 1e-11  # complex step: rounding only
FLOOR = 1e-9  # times the largest gradient of the case: for tensors whose gradient is exactly zero


def objective(decoder, parameters, batch, options):
    loss, z_loss, _ = decoder.losses(parameters, batch, options)
    return loss + z_loss


def central_differences(function, array):
    """d function() / d array, where function reads the array."""
    estimate, flat = np.zeros(array.shape), array.reshape(-1)  # flat is a view
    for i in range(flat.size):
        kept = flat[i]
        flat[i] = kept + STEP
        above = function()
        flat[i] = kept - STEP
        estimate.flat[i] = (above - function()) / (2 * STEP)
        flat[i] = kept
    return estimate


def complex_step(function, array):
    """The same from one evaluation per element, without cancellation: Im f(x + ih) / h."""
    estimate, flat = np.zeros(array.shape), array.reshape(-1)
    for i in range(flat.size):
        flat[i] += 1j * COMPLEX_STEP
        estimate.flat[i] = function().imag / COMPLEX_STEP
        flat[i] = flat[i].real
    return estimate


def check_case(case):
    """Worst (central, complex) error over the parameters, each relative to its tensor's largest gradient."""
    decoder, parameters, batch = build(case)
    options = case["loss_options"]
    exact = decoder.loss_and_gradients(parameters, batch, options)["gradients"]
    floor = FLOOR * max(np.abs(gradient).max() for gradient in exact.values())
    worst = [0.0, 0.0]
    for name, gradient in exact.items():
        estimates = []
        for method, kind in [(central_differences, float), (complex_step, complex)]:
            array = parameters[name].astype(kind)
            changed = parameters | {name: array}
            estimates.append(method(lambda: objective(decoder, changed, batch, options), array))
        allowed = np.abs(gradient).max() + floor / TOLERANCE
        worst = [max(w, np.abs(estimate - gradient).max() / allowed) for w, estimate in zip(worst, estimates)]
    return worst


def run(names):
    """0 if every case passes, 1 if not, 2 for an unknown name."""
    cases = all_cases()
    for name in names:
        if name not in cases:
            print(f"decoder.py --check: no case '{name}'; there are {', '.join(cases)}", file=sys.stderr)
            return 2
    failed = 0
    for name in names or cases:
        central, by_complex_step = check_case(cases[name])
        good = central <= TOLERANCE and by_complex_step <= COMPLEX_TOLERANCE
        failed += not good
        print(f"{'ok    ' if good else 'FAILED'} {name:26} central {central:.1e}  complex step {by_complex_step:.1e}",
              flush=True)
    return 1 if failed else 0
