"""Save which weights an optimizer does not decay, which Keras forgets."""

UNDECAYED = "undecayed_weights"  # key in a compile configuration


def list_undecayed(optimizer, variables):
    """Return the paths of variables that the optimizer was told to leave out of weight decay."""
    if optimizer is None:
        return []
    inner = _innermost(optimizer)
    return [
        variable.path for variable in variables if not inner._use_weight_decay(variable)
    ]  # Keras has no public form


def exclude_from_decay(optimizer, variables, paths):
    """Leave the variables of those paths out of weight decay; before the optimizer is built."""
    excluded = [variable for variable in variables if variable.path in set(paths)]
    if excluded:
        _innermost(optimizer).exclude_from_weight_decay(var_list=excluded)


def _innermost(optimizer):
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer
