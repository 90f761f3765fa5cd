"""The rules that apply aten operations to values slope·δ + intercept: one rule per operation.

A rule is a function `rule(func, *args, **kwargs)` with the operation's own arguments. It is registered with
the decorator `@rule("name", …)`. To add a rule, find its place by subject:

- `shapes.py`: operations that move numbers, make constants, or write into a tensor;
- `arithmetic.py`: sums, differences, means, and products with numbers;
- `linear.py`: linear layers, convolutions, average pooling, batch norm, dropout;
- `choices.py`: ReLU and other piecewise linear activations, maxima, max pooling.

Arguments that are plain tensors, such as weights and biases, are constants: their slope is 0, and they are
converted to float64. The model itself is neither changed nor copied.

Rules that are registered with `affine=True` are also used for cells of a ray (`cell_tensor.py`).
"""

from bitbayes.rays.rules import arithmetic, choices, linear, shapes
from bitbayes.rays.rules.registry import RULES, rule

__all__ = ["RULES", "arithmetic", "choices", "linear", "rule", "shapes"]
