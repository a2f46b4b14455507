"""Watch every step for NaN and infinity on the device, leave such steps out, and scale the loss for float16."""

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.adamw import dense_gradients
from keras_bert_flow.backends.values import read_variable

INITIAL_SCALE = 2.0**15
LARGEST_SCALE = 2.0**24  # beyond it the float32 parts of a model gain nothing
GROWTH_STEPS = 2000


class NotFiniteError(ValueError):
    """A loss, a gradient or a score was NaN or infinite."""


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class GuardedOptimizer(keras.optimizers.Optimizer):
    """Hand gradients on to another optimizer, unless they are not finite.

    Nothing here waits for the device: what was not finite is noted in variables, which `check` reads at a border. Told
    to stop only, it changes nothing else; the weights may be NaN from that step to the border. Told to skip or to scale
    the loss, it leaves weights, moments and the count of steps of the other optimizer as they were.

    `keras.optimizers.LossScaleOptimizer` is not in its place, for three reasons: it takes batches away from an
    optimizer that accumulates them, whose steps then begin in the middle of a batch; its name, which is that of its
    state in a checkpoint, counts the optimizers of the process; and it halves the scale for ever, where NaN that does
    not come of the scale should end the run.

    Args:
        inner_optimizer: may accumulate batches itself only where nothing is left out.
        max_skipped_steps: so many steps in a row may be left out; 0 is to stop.
        accumulate_batches: batches whose mean gradient makes a step, where steps are left out.
        scales_loss: multiply the loss, so that gradients do not vanish in float16. The scale is halved at each step
            with gradients that are not finite, which is no error while it is above 1, and doubled after 2,000 without.
    Source of the scale: Micikevicius et al. 2018, section 3.2, arXiv:1710.03740; the factors are those of Keras.
    """

    def __init__(
        self, inner_optimizer, max_skipped_steps=0, accumulate_batches=1, scales_loss=False, name="guard", **kwargs
    ):
        super().__init__(learning_rate=0.0, name=name, **kwargs)
        self.inner_optimizer = inner_optimizer
        self.max_skipped_steps = max_skipped_steps
        self.accumulate_batches = accumulate_batches
        self.scales_loss = scales_loss
        self.leaves_out = scales_loss or max_skipped_steps > 0
        own = inner_optimizer.gradient_accumulation_steps or 1
        if self.leaves_out and own > 1:
            raise ValueError(
                "An optimizer whose steps may be left out must not accumulate batches itself. Received: "
                f"gradient_accumulation_steps={own}. Give accumulate_batches={own} instead."
            )
        self._batches_per_step = accumulate_batches if self.leaves_out else own

    def build(self, variables):
        if self.built:
            return
        self._batches = self._add_number("batches")
        self._skipped_steps = self._add_number("skipped_steps")
        self._row = self._add_number("row")  # steps in a row that were not finite, though not by the scale
        self._failed_step = self._add_number("failed_step")
        self._failed_weights = self.add_variable((len(variables),), dtype="int32", name="failed_weights")
        if self.scales_loss:
            self._scale = self._add_number("scale", "float32", keras.initializers.Constant(INITIAL_SCALE))
            self._steps_at_scale = self._add_number("steps_at_scale")
        if self.leaves_out and self.accumulate_batches > 1:
            self._sums = self.add_optimizer_variables(variables, "sum")
        self.inner_optimizer.build(variables)
        super().build(variables)

    def _add_number(self, name, dtype="int32", initializer="zeros"):
        return self.add_variable((), dtype=dtype, initializer=initializer, aggregation="only_first_replica", name=name)

    @property
    def variables(self):
        return [*super().variables, *self.inner_optimizer.variables]

    @property
    def iterations(self):
        """Steps that were made; those left out are not among them."""
        return self.inner_optimizer.iterations

    @property
    def steps(self) -> int:
        """Steps that were made or left out."""
        return _to_int(self._batches) // self._batches_per_step if self.built else 0

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    def scale_loss(self, loss):
        """Multiply by the scale; and make every gradient NaN where the loss is not finite, though they might be."""
        scale = ops.cast(self._scale if self.scales_loss else 1.0, loss.dtype)
        return ops.multiply(loss, ops.where(ops.isfinite(loss), scale, ops.cast(float("nan"), loss.dtype)))

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        gradients, variables = dense_gradients(grads), list(trainable_variables or self._trainable_variables)
        is_last = ops.equal((self._batches + 1) % self._batches_per_step, 0)
        if self.leaves_out:
            gradients = self._complete(gradients, is_last)
        sums = [0.0 if gradient is None else ops.sum(gradient) for gradient in gradients]  # of NaN or inf, never finite
        are_finite = ops.isfinite(ops.stack(sums))
        is_finite = ops.all(are_finite)
        if self.leaves_out:
            self._apply_if(ops.logical_and(is_last, is_finite), gradients, variables)
        else:
            self.inner_optimizer.apply(gradients, variables)
        self._take_note(is_last, is_finite, are_finite)

    def _complete(self, gradients, is_last):
        """Add up the gradients of a step's batches; return their mean, without the scale, of use at the last."""
        if self.accumulate_batches > 1:
            gradients = [ops.add(sum_, gradient) for sum_, gradient in zip(self._sums, gradients, strict=True)]
            for sum_, gradient in zip(self._sums, gradients, strict=True):
                sum_.assign(ops.where(is_last, ops.zeros_like(gradient), gradient))
        divisor = self.accumulate_batches * (self._scale if self.scales_loss else 1.0)
        return [None if gradient is None else ops.divide(gradient, divisor) for gradient in gradients]

    def _apply_if(self, is_wanted, gradients, variables):
        if keras.backend.backend() != "jax":
            ops.cond(is_wanted, lambda: self.inner_optimizer.apply(gradients, variables), lambda: None)
            return
        # A choice of each value costs less in jax than a branch, of which it would compile both and copy the state.
        state = [*variables, *self.inner_optimizer.variables]
        before = [variable.value for variable in state]
        self.inner_optimizer.apply(gradients, variables)
        for variable, value in zip(state, before, strict=True):
            variable.assign(ops.where(is_wanted, variable.value, value))

    def _take_note(self, is_last, is_finite, are_finite):
        """Count the batch and, at the last of a step, what has become of the step."""
        is_bad = ops.logical_not(is_finite)
        if self.leaves_out:
            is_bad = ops.logical_and(is_last, is_bad)
            self._skipped_steps.assign_add(ops.cast(is_bad, "int32"))
        if self.scales_loss:
            is_overflow = ops.logical_and(is_bad, self._scale > 1)
            is_bad = ops.logical_and(is_bad, ops.logical_not(is_overflow))
            self._adapt_scale(is_last, is_finite, is_overflow)
        is_good = ops.logical_and(is_last, is_finite)
        self._row.assign(ops.where(is_good, 0, self._row + ops.cast(is_bad, "int32")))
        fails = ops.logical_and(self._row > self.max_skipped_steps, ops.equal(self._failed_step, 0))
        step = self._batches // self._batches_per_step + 1
        self._failed_step.assign(ops.where(fails, step, self._failed_step.value))
        are_bad = ops.cast(ops.logical_not(are_finite), "int32")
        self._failed_weights.assign(ops.where(fails, are_bad, self._failed_weights.value))
        self._batches.assign_add(1)

    def _adapt_scale(self, is_last, is_finite, is_overflow):
        is_good = ops.logical_and(is_last, is_finite)
        steps = ops.where(is_overflow, 0, self._steps_at_scale + ops.cast(is_good, "int32"))
        grows = steps >= GROWTH_STEPS
        factor = ops.where(is_overflow, 0.5, ops.where(grows, 2.0, 1.0))
        self._scale.assign(ops.minimum(self._scale * factor, LARGEST_SCALE))
        self._steps_at_scale.assign(ops.where(grows, 0, steps))

    def check(self) -> dict[str, float]:
        """Return what a line of the log says of it: the steps left out up to now, and the scale.

        Raises:
            NotFiniteError: a step, or too many in a row, was not finite.
        """
        step = _to_int(self._failed_step)
        if step:
            raise NotFiniteError(
                f"Loss and gradients must be finite. Received: NaN or infinity in {self._describe_failure()} at step "
                f"{step}{self._describe_row()}. {self._advise()}"
            )
        facts = {"skipped_steps": _to_int(self._skipped_steps)} if self.leaves_out else {}
        return facts | ({"loss_scale": float(read_variable(self._scale))} if self.scales_loss else {})

    def _describe_failure(self) -> str:
        are_bad = read_variable(self._failed_weights).astype(bool)
        if are_bad.all():
            return "the loss"  # see `scale_loss`
        watched = self._trainable_variables  # what Keras gives to its subclasses, underscore and all
        paths = [variable.path for variable, is_bad in zip(watched, are_bad, strict=True) if is_bad]
        return f"the gradients of {len(paths)} of {len(are_bad)} weights (the first is {paths[0]})"

    def _describe_row(self) -> str:
        return f", the last of {self.max_skipped_steps + 1} such in a row" if self.max_skipped_steps else ""

    def _advise(self) -> str:
        advice = "Lower the learning rate, or look for damaged input"
        return advice + ("." if self.max_skipped_steps else "; non_finite: skip leaves such steps out.")

    def reset(self) -> None:
        """Go back to the state before the first step."""
        for variable in self.variables:
            variable.assign(ops.zeros_like(variable.value))
        if self.scales_loss:
            self._scale.assign(INITIAL_SCALE)

    def get_config(self):
        names = ("name", "max_skipped_steps", "accumulate_batches", "scales_loss")
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {name: getattr(self, name) for name in names} | {"inner_optimizer": inner}

    @classmethod
    def from_config(cls, config):
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"])
        return cls(**(config | {"inner_optimizer": inner}))


def check_steps(optimizer) -> dict[str, float]:
    """Return what `GuardedOptimizer.check` does, or nothing for another optimizer; it raises as that does."""
    return optimizer.check() if isinstance(optimizer, GuardedOptimizer) else {}


def _to_int(variable) -> int:
    return int(np.asarray(read_variable(variable)))
