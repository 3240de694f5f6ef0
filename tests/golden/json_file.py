"""Writes JSON that people can read and compare: one line for a list of numbers, one for each entry of a dict."""
import json
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent


def dump(item, indent=0):
    """JSON text; floats in their shortest exact form."""
    space = " " * (indent + 1)
    if isinstance(item, dict):
        lines = [f"{space}{json.dumps(key)}: {dump(inner, indent + 1)}" for key, inner in item.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}" if lines else "{}"
    if isinstance(item, np.ndarray):
        return dump(item.tolist(), indent)
    if isinstance(item, (list, tuple)):
        parts = [dump(inner, indent + 1) for inner in item]
        if any(isinstance(inner, dict) for inner in item):
            return "[\n" + ",\n".join(space + part for part in parts) + "\n" + " " * indent + "]"
        return "[" + ",".join(parts) + "]"
    if isinstance(item, np.generic):
        item = item.item()
    return json.dumps(item, allow_nan=False)


def nine_digits(array):
    """A flat list of the values rounded to 9 significant digits."""
    return [float(f"{x:.9g}") for x in np.asarray(array).reshape(-1)]


def write(path, item):
    target = HERE / path
    target.parent.mkdir(exist_ok=True)
    target.write_text(dump(item) + "\n", encoding="utf-8")
