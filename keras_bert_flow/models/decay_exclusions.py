"""Weight decay exclusions that survive saving, which Keras leaves out of a saved optimizer."""

import re
from collections.abc import Callable

import keras

# Weights without decay, by `variable.name`: a path such as `layer_norm` matches nothing in Keras 3. On TensorFlow the
# optimizer sees names like `pooler/dense/bias:0`. A test checks the paths of the weights that are decayed.
UNDECAYED_NAMES = (r"(^|/)(bias|gamma|beta)(:0)?$",)


class ExcludesNames:
    """Mixin for optimizers that do not decay `UNDECAYED_NAMES`, also when built from a config."""

    exclude_from_weight_decay: Callable[..., None]  # of the optimizer class with this mixin

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.exclude_from_weight_decay(var_names=list(UNDECAYED_NAMES))


def list_undecayed(optimizer, variables):
    """Return the paths of variables excluded from weight decay, except those that `ExcludesNames` excludes."""
    if optimizer is None:
        return []
    inner = _innermost(optimizer)
    own = UNDECAYED_NAMES if isinstance(inner, ExcludesNames) else ()
    return [
        variable.path
        for variable in variables
        # Keras has no public API for this.
        if not inner._use_weight_decay(variable) and not any(re.search(name, variable.name) for name in own)
    ]


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class OptimizerWithExclusions:
    """Serialised form of an optimizer with its weight decay exclusions; `from_config` returns the optimizer itself.

    Args:
        optimizer: the optimizer as serialised by Keras.
        undecayed: paths of the variables without decay.
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

        optimizer.build = exclude_and_build  # the variables are known only in `build`
        return optimizer


def _innermost(optimizer):
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer
