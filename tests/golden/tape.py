"""Reverse-mode differentiation for NumPy formulas.

A formula written with the operators and functions below runs on plain arrays (real, or complex for the complex-step
check) and then costs nothing extra; given a Node anywhere it returns a Node, which remembers how to pull a gradient
back to its parents. `gradients(y, nodes)` walks them from last to first.
"""
import itertools

import numpy as np

_age = itertools.count()


class Node:
    __array_ufunc__ = None  # array + Node must call Node.__radd__, not loop over elements

    def __init__(self, value, parents=()):
        self.value = np.asarray(value)
        self.parents = parents  # pairs (parent, pullback: gradient of self -> its share of the parent's gradient)
        self.age = next(_age)  # a parent is always older than its children

    shape = property(lambda self: self.value.shape)

    def __add__(self, other): return add(self, other)
    def __radd__(self, other): return add(other, self)
    def __sub__(self, other): return add(self, multiply(other, -1.0))
    def __rsub__(self, other): return add(other, multiply(self, -1.0))
    def __neg__(self): return multiply(self, -1.0)
    def __mul__(self, other): return multiply(self, other)
    def __rmul__(self, other): return multiply(other, self)
    def __truediv__(self, other): return divide(self, other)
    def __rtruediv__(self, other): return divide(other, self)
    def __matmul__(self, other): return matmul(self, other)
    def __rmatmul__(self, other): return matmul(other, self)

    def __getitem__(self, index):
        def pull(gradient):
            whole = np.zeros_like(self.value)
            np.add.at(whole, index, gradient)  # an element that was read twice collects both
            return whole
        return Node(self.value[index], [(self, pull)])

    def reshape(self, *shape):
        return Node(self.value.reshape(*shape), [(self, lambda gradient: gradient.reshape(self.shape))])

    def transpose(self, *axes):
        return Node(self.value.transpose(*axes), [(self, lambda gradient: gradient.transpose(*np.argsort(axes)))])

    @property
    def T(self):
        return self.transpose(1, 0)

    def sum(self, axis=None, keepdims=False):
        def pull(gradient):
            if axis is not None and not keepdims:
                gradient = np.expand_dims(gradient, axis)
            return np.broadcast_to(gradient, self.shape)
        return Node(self.value.sum(axis=axis, keepdims=keepdims), [(self, pull)])

    def mean(self, axis=None, keepdims=False):
        total = self.sum(axis, keepdims)
        return total * (total.value.size / self.value.size)


def value(x):
    return x.value if isinstance(x, Node) else np.asarray(x)


def _result(result, *parents):
    """A Node if one of the parents is a Node, else the plain result."""
    recorded = [pair for pair in parents if isinstance(pair[0], Node)]
    return Node(result, recorded) if recorded else result


def _fold(gradient, shape):
    """Sums over the dimensions along which an operand of that shape was repeated by broadcasting."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(i for i, n in enumerate(shape) if n == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=repeated, keepdims=True)


def add(a, b):
    x, y = value(a), value(b)
    return _result(x + y, (a, lambda g: _fold(g, x.shape)), (b, lambda g: _fold(g, y.shape)))


def multiply(a, b):
    x, y = value(a), value(b)
    return _result(x * y, (a, lambda g: _fold(g * y, x.shape)), (b, lambda g: _fold(g * x, y.shape)))


def divide(a, b):
    x, y = value(a), value(b)
    return _result(x / y, (a, lambda g: _fold(g / y, x.shape)), (b, lambda g: _fold(-g * x / (y * y), y.shape)))


def matmul(a, b):
    x, y = value(a), value(b)
    return _result(x @ y,
                   (a, lambda g: _fold(g @ np.swapaxes(y, -1, -2), x.shape)),
                   (b, lambda g: _fold(np.swapaxes(x, -1, -2) @ g, y.shape)))


def exp(a):
    y = np.exp(value(a))
    return _result(y, (a, lambda g: g * y))


def log(a):
    x = value(a)
    return _result(np.log(x), (a, lambda g: g / x))


def sqrt(a):
    y = np.sqrt(value(a))
    return _result(y, (a, lambda g: g / (2 * y)))


def tanh(a):
    y = np.tanh(value(a))
    return _result(y, (a, lambda g: g * (1 - y * y)))


def select(mask, a, otherwise):
    """a where the mask holds, else the number `otherwise`."""
    x = value(a)
    return _result(np.where(mask, x, otherwise), (a, lambda g: _fold(np.where(mask, g, 0.0), x.shape)))


def concatenate(parts):
    """Joins along the last dimension."""
    ends = np.cumsum([value(part).shape[-1] for part in parts])
    spans = [slice(end - value(part).shape[-1], end) for part, end in zip(parts, ends)]
    pulls = [(part, lambda g, span=span: g[..., span]) for part, span in zip(parts, spans)]
    return _result(np.concatenate([value(part) for part in parts], axis=-1), *pulls)


def gradients(result, nodes):
    """d result / d node for each node, where result holds a single number."""
    found, waiting = {id(result): result}, [result]
    while waiting:
        for parent, _ in waiting.pop().parents:
            if id(parent) not in found:
                found[id(parent)] = parent
                waiting.append(parent)
    gradient = {id(result): np.ones_like(result.value)}
    for node in sorted(found.values(), key=lambda node: -node.age):
        for parent, pull in node.parents:
            gradient[id(parent)] = gradient.get(id(parent), 0.0) + pull(gradient[id(node)])
    return [gradient.get(id(node), np.zeros_like(node.value)) for node in nodes]
