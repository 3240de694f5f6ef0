"""Golden values for the lab's statistics, by SciPy and NumPy (Debian: python3-scipy). Writes statistics.json."""
import json
import pathlib

import numpy as np
from scipy import stats


def interval(values):
    """Half the width of Student's 95% interval of the mean."""
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    return (high - low) / 2


def paired(a, b):
    differences = np.subtract(a, b)
    return {"a": a, "b": b, "mean": np.mean(differences), "half_width": interval(differences),
            "p": stats.ttest_rel(a, b).pvalue}


def sensitivity(losses, first_loss):
    """Mean of min(l, l0) over the grid minus the smallest; what is not finite counts as l0."""
    losses = np.where(np.isfinite(losses), losses, first_loss)
    kept = np.minimum(losses, first_loss)
    return float(np.mean(kept) - np.min(kept))


def spike_score(values, deviations, window):
    """Share of the values with 128 finite ones before them that lie that many deviations from the window's mean."""
    judged = spikes = 0
    for i, value in enumerate(values):
        history = np.array([v for v in values[:i] if np.isfinite(v)])[-window:]
        if len(history) < 128:
            continue
        judged += 1
        spikes += not np.isfinite(value) or abs(value - history.mean()) >= deviations * history.std()
    return spikes / judged if judged else 0.0


def spiky_curve(random, length):
    curve = 3 + 2 * np.exp(-np.arange(length) / 200) + 0.05 * random.standard_normal(length)
    for place, size in [(50, 9), (300, 1), (301, 0.8), (700, -0.9), (1200, 3), (1400, 0.3)]:
        curve[place] += size
    curve[900] = np.nan
    return curve


def main():
    random = np.random.default_rng(6)
    estimates = []
    for count in [3, 4, 5, 9, 30]:
        values = list(random.normal(2, 0.3, count))
        estimates.append({"values": values, "mean": np.mean(values), "half_width": interval(values)})
    a, b = list(random.normal(2.5, 0.2, 5)), list(random.normal(2.2, 0.2, 5))
    losses = [3.1, 2.7, 2.45, 2.5, 5.0, 5.9]
    curve = spiky_curve(random, 1500)
    golden = {
        "estimates": estimates,
        "paired": [paired(a, b), paired(a + [2.1, 3.0], b + [2.6, 2.9])],
        "sensitivity": [{"losses": losses, "first_loss": l0, "value": sensitivity(losses, l0)} for l0 in [5.55, 3.0]]
        + [{"losses": losses[:4] + ["nan", "inf"], "first_loss": 5.55,
            "value": sensitivity(losses[:4] + [np.nan, np.inf], 5.55)}],
        "curve": [None if np.isnan(v) else round(float(v), 6) for v in curve],
        "spikes": [],
    }
    rounded = np.array([np.nan if v is None else v for v in golden["curve"]])
    for deviations, window in [(7, 1000), (6, 128), (3, 128)]:
        golden["spikes"].append({"deviations": deviations, "window": window,
                                 "score": spike_score(rounded, deviations, window)})
    pathlib.Path(__file__).with_name("statistics.json").write_text(json.dumps(golden, default=float) + "\n")


if __name__ == "__main__":
    main()
