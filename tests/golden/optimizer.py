"""AdamW and learning-rate schedules, number by number in plain Python."""
import math

GRADIENTS = [[0.5, -2.0, 1e-9, 0.0, 300.0, 0.25],
             [0.25, -2.5, 2e-9, 0.0, -200.0, 0.25],
             [-1.0, -1.5, -1e-9, 0.0, 100.0, 0.25],
             [0.125, 4.0, 3e-9, 0.0, 50.0, 0.25],
             [0.75, -0.5, 1e-9, 0.0, -25.0, 0.25]]
START = [1.0, -0.5, 0.25, 1.0, 2.0, 0.0]


def adamw(options, gradients=GRADIENTS, start=START):
    """[(parameters, first moments, second moments)] after each update.

    decoupled:   p <- p - lr * (m_hat / (sqrt(v_hat) + eps) + decay * p)
    independent: p <- p - lr * m_hat / (sqrt(v_hat) + eps) - factor * decay * p, where lr = peak * factor
    """
    p, m, v, steps = list(start), [0.0] * len(start), [0.0] * len(start), []
    beta1, beta2 = options["beta1"], options["beta2"]
    for t, (factor, gradient) in enumerate(zip(options["factors"], gradients), 1):
        lr = options["lr"] * factor
        shrink = options["weight_decay"] * (lr if options["decay"] == "decoupled" else factor)
        for i, x in enumerate(gradient):
            m[i] = beta1 * m[i] + (1 - beta1) * x
            v[i] = beta2 * v[i] + (1 - beta2) * x * x
            m_hat, v_hat = m[i] / (1 - beta1 ** t), v[i] / (1 - beta2 ** t)
            p[i] = p[i] - lr * m_hat / (math.sqrt(v_hat) + options["eps"]) - shrink * p[i]
        steps.append((list(p), list(m), list(v)))
    return steps


def adamw_golden():
    common = {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "decay": "decoupled",
              "factors": [1.0] * 5}
    varying = [0.2, 0.6, 1.0, 0.8, 0.3]  # as a schedule gives them: lr = peak * factor
    cases = {"decoupled": {}, "decoupled_schedule": {"factors": varying}, "without_decay": {"weight_decay": 0.0},
             "independent": {"decay": "independent", "weight_decay": 0.01},
             "independent_schedule": {"decay": "independent", "weight_decay": 0.01, "factors": varying},
             "usual_settings": {"lr": 3e-4, "beta2": 0.999, "eps": 1e-12}}
    result = {"start": START, "gradients": GRADIENTS, "cases": []}
    for name, changes in cases.items():
        options = common | changes
        parameters, first, second = zip(*adamw(options))
        result["cases"].append({"name": name} | options
                               | {"parameters": parameters, "first_moments": first, "second_moments": second})
    return result


def learning_rate(options, step):
    """step counts from 1. Warm-up reaches the peak at step `warmup`; the last step, `total`, has the final rate."""
    peak, warmup, total = options["peak"], options["warmup"], options["total"]
    final = options["final_share"] * peak
    if step <= warmup:
        return peak * step / warmup
    if options["kind"] == "constant":
        return peak
    if step >= total:
        return final
    if options["kind"] == "cosine":
        return final + (peak - final) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
    left = total - step  # wsd: constant, then linear over the last `decay` steps
    return peak if left >= options["decay"] else final + (peak - final) * left / options["decay"]


def schedule_golden():
    common = {"peak": 8e-4, "warmup": 5, "total": 20, "decay": 0, "final_share": 0.1}
    cases = {"constant": {"kind": "constant"}, "constant_without_warmup": {"kind": "constant", "warmup": 0},
             "cosine": {"kind": "cosine"}, "cosine_to_zero": {"kind": "cosine", "final_share": 0.0},
             "cosine_without_warmup": {"kind": "cosine", "warmup": 0},
             "cosine_long": {"kind": "cosine", "warmup": 10, "total": 100},
             "warmup_only": {"kind": "cosine", "warmup": 20},
             "wsd": {"kind": "wsd", "decay": 6}, "wsd_to_zero": {"kind": "wsd", "decay": 15, "final_share": 0.0}}
    result = []
    for name, changes in cases.items():
        options = common | changes
        values = [learning_rate(options, step) for step in range(1, options["total"] + 3)]
        result.append({"name": name} | options | {"values": values})
    return {"first_step": 1, "cases": result}
