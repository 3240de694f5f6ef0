"""Loss and gradients recomputed in float64 from a checkpoint: logical tensors in HDF5 and the config as YAML text."""
import json
import re
import sys

import numpy as np

from decoder import Batch, Decoder
from json_file import dump

PARAMETERS = "/parameters"  # the group whose datasets bear the parameters' names
CONFIG = "/run/config"  # a text dataset: the resolved YAML config
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")


def libraries():
    """(h5py, yaml), or SystemExit(2) with the package that brings what is missing."""
    try:
        import h5py
    except ImportError:
        refuse("h5py is missing: install the Debian package python3-h5py")
    try:
        import yaml
    except ImportError:
        refuse("PyYAML is missing: install the Debian package python3-yaml")
    return h5py, yaml


def refuse(reason):
    print(f"decoder.py: {reason}", file=sys.stderr)
    raise SystemExit(2)


def with_numbers(item):
    """PyYAML reads 1e-6 as text (YAML 1.1 asks for a point): turn such text into numbers."""
    if isinstance(item, dict):
        return {key: with_numbers(inner) for key, inner in item.items()}
    if isinstance(item, list):
        return [with_numbers(inner) for inner in item]
    return float(item) if isinstance(item, str) and NUMBER.match(item) else item


def read(path, group=PARAMETERS):
    """(config, tensors of a group by name), through external links where the checkpoint is in parts."""
    h5py, yaml = libraries()
    with h5py.File(path, "r") as file:
        for needed in [CONFIG, group]:
            if needed not in file:
                refuse(f"{path} has no {needed}; it holds {', '.join(file)}")
        text = file[CONFIG][()]
        text = text if isinstance(text, bytes) else bytes(np.asarray(text))
        parameters = {}
        for name in file[group]:
            parameters[name] = file[group][name][()].astype(float)
    return with_numbers(yaml.safe_load(text.rstrip(b"\0").decode())), parameters


def checked(parameters, shapes, path):
    """The parameters in the order of the shapes; any difference in names or shapes is refused."""
    missing, unexpected = shapes.keys() - parameters.keys(), parameters.keys() - shapes.keys()
    if missing or unexpected:
        refuse(f"{path}: missing {sorted(missing)}, unexpected {sorted(unexpected)}")
    for name, shape in shapes.items():
        if list(parameters[name].shape) != shape:
            refuse(f"{path}: {name} is {list(parameters[name].shape)}, the config says {shape}")
    return {name: parameters[name] for name in shapes}


def run(checkpoint_path, batch_path, out_path):
    try:
        config, parameters = read(checkpoint_path)
        with open(batch_path, encoding="utf-8") as file:
            given = json.load(file)
    except (OSError, json.JSONDecodeError) as problem:
        refuse(problem)
    train = config.get("train") or {}
    options = given.get("loss_options") or {key: train.get(key) or 0.0 for key in ["z_loss", "label_smoothing"]}
    try:
        decoder = Decoder(config["model"])
    except ValueError as problem:
        refuse(f"{checkpoint_path}: {problem}")
    batch = Batch(given["tokens"], given["targets"], given.get("documents"))
    parameters = checked(parameters, decoder.parameter_shapes(), checkpoint_path)
    result = decoder.loss_and_gradients(parameters, batch, options)
    norms = {name: float(np.sqrt((gradient ** 2).sum())) for name, gradient in result["gradients"].items()}
    print(dump({"loss": result["loss"], "z_loss": result["z_loss"], "largest_logit": result["largest_logit"],
                "entropy": result["entropy"], "gradient_norms": norms}))
    if out_path:
        with open(out_path, "w", encoding="utf-8") as file:
            file.write(dump({"loss": result["loss"], "z_loss": result["z_loss"], "gradients": result["gradients"]}))
    return 0
