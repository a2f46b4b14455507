"""Beam, with what it finds out again and again remembered: these tests then take half the time.

It parses its options anew for each transform of a pipeline, and inspects the methods of each DoFn several times. What
comes out depends on the flags and the class alone. Jobs in processes of their own have plain Beam.
"""

import copy
import functools
import types

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate


def remember_options() -> None:
    """Parse the same flags for the same class of options once."""
    parse, parsed = PipelineOptions.__init__, {}

    @functools.wraps(parse)
    def initialise(self, flags=None, **overrides):
        key = type(self), None if flags is None else tuple(flags)
        if key not in parsed:
            parse(self, flags, **overrides)
            if flags is not None and not overrides:
                parsed[key] = copy.deepcopy(self._visible_options)
            return
        self._flags, self._visible_options = flags, copy.deepcopy(parsed[key])
        own = {name: getattr(self._visible_options, name) for name in self._visible_option_list()}
        self._all_options = own | overrides

    PipelineOptions.__init__ = initialise


def remember_states() -> None:
    """Look for states and timers in the methods of a class of DoFn once; a function's DoFn has arguments of its own."""
    inspect_dofn = userstate.get_dofn_specs
    found: dict[type, tuple[set, set]] = {}

    @functools.wraps(inspect_dofn)
    def get_dofn_specs(dofn):
        if isinstance(dofn, core.CallableWrapperDoFn):
            return inspect_dofn(dofn)
        if type(dofn) not in found:
            found[type(dofn)] = inspect_dofn(dofn)
        states, timers = found[type(dofn)]
        return set(states), set(timers)

    userstate.get_dofn_specs = get_dofn_specs


def remember_arguments() -> None:
    """Inspect the arguments of the same method once."""
    inspect_method = core.get_function_args_defaults
    found: dict[types.FunctionType, tuple[list, list]] = {}

    @functools.wraps(inspect_method)
    def get_arguments(function):
        if not isinstance(function, types.MethodType):
            return inspect_method(function)
        if function.__func__ not in found:
            found[function.__func__] = inspect_method(function)
        names, defaults = found[function.__func__]
        return list(names), list(defaults)

    core.get_function_args_defaults = get_arguments
