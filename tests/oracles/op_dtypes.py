"""Say in which types a backend really computes: by jax's traced program, TensorFlow's graph, torch's calls."""

import re

import keras

# What softmax, layer norm and cross-entropy are made of, by backend; `erf` and `tanh` are of activations.
NAMES = {
    "jax": {"exp", "log", "rsqrt", "sqrt", "logsumexp"},
    "tensorflow": {"Exp", "Log", "Rsqrt", "Softmax", "LogSoftmax", "SparseSoftmaxCrossEntropyWithLogits"},
    "torch": {"exp", "log", "rsqrt", "_softmax", "_log_softmax", "native_layer_norm", "var_mean", "logsumexp"},
}


def find_dtypes(function, *arrays) -> dict[str, set[str]]:
    """Return, for each operation of `NAMES` that a function of arrays makes, the types of its first operand."""
    return {"jax": _of_jax, "tensorflow": _of_tensorflow, "torch": _of_torch}[keras.backend.backend()](function, arrays)


def _of_jax(function, arrays):
    import jax

    found: dict[str, set[str]] = {}

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if name in NAMES["jax"]:
                found.setdefault(name, set()).add(str(equation.invars[0].aval.dtype))
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda part: hasattr(part, "eqns")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    walk(inner)

    walk(jax.make_jaxpr(function)(*arrays).jaxpr)
    return found


def _of_tensorflow(function, arrays):
    import tensorflow

    found: dict[str, set[str]] = {}
    graph = tensorflow.function(function).get_concrete_function(*map(tensorflow.constant, arrays)).graph.as_graph_def()
    inner = [node for compiled in graph.library.function for node in compiled.node_def]
    for node in [*graph.node, *inner]:
        if node.op in NAMES["tensorflow"]:
            found.setdefault(node.op, set()).add(tensorflow.dtypes.as_dtype(node.attr["T"].type).name)
    return found


def _of_torch(function, arrays):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: dict[str, set[str]] = {}

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), named=None):
            name = re.sub(r"^aten::", "", operation._schema.name)
            if name in NAMES["torch"]:
                found.setdefault(name, set()).add(str(arguments[0].dtype).removeprefix("torch."))
            return operation(*arguments, **(named or {}))

    with Listen():
        function(*map(torch.as_tensor, arrays))
    return found
