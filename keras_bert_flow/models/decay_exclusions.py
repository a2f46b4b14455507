"""Keep which weights an optimizer does not decay, which Keras leaves out of a saved optimizer."""

import re
from collections.abc import Callable

import keras

# What is never decayed, by `variable.name`: a path such as `layer_norm` matches nothing in Keras 3. On TensorFlow the
# optimizer sees variables named like `pooler/dense/bias:0`. A test pins the paths that this leaves to be decayed.
UNDECAYED_NAMES = (r"(^|/)(bias|gamma|beta)(:0)?$",)


class ExcludesNames:
    """An optimizer that does not decay `UNDECAYED_NAMES`, also when it is made from a configuration."""

    exclude_from_weight_decay: Callable[..., None]  # of the optimizer that this is mixed into

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.exclude_from_weight_decay(var_names=list(UNDECAYED_NAMES))


def list_undecayed(optimizer, variables):
    """Return the paths of variables without weight decay, except those that the optimizer excludes by itself."""
    if optimizer is None:
        return []
    inner = _innermost(optimizer)
    own = UNDECAYED_NAMES if isinstance(inner, ExcludesNames) else ()
    return [
        variable.path
        for variable in variables
        # Keras has no public form.
        if not inner._use_weight_decay(variable) and not any(re.search(name, variable.name) for name in own)
    ]


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class OptimizerWithExclusions:
    """An optimizer, in a configuration, with the weights that it was told not to decay; read, it is that optimizer.

    Args:
        optimizer: as Keras serializes it.
        undecayed: paths of variables.
    """

    def __init__(self, optimizer, undecayed):
        self._config = {"optimizer": optimizer, "undecayed": undecayed}

    def get_config(self):
        return self._config

    @classmethod
    def from_config(cls, config):
        optimizer = keras.saving.deserialize_keras_object(config["optimizer"])
        build, paths = optimizer.build, set(config["undecayed"])

        def exclude_and_build(variables):
            if excluded := [variable for variable in variables if variable.path in paths]:
                _innermost(optimizer).exclude_from_weight_decay(var_list=excluded)
            build(variables)

        optimizer.build = exclude_and_build  # only there are the variables at hand
        return optimizer


def _innermost(optimizer):
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer
