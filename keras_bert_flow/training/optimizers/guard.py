"""Detect NaN and infinity in every step on the device, skip such steps, scale the loss, and train weights in turn."""

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.optimizers import dense_gradients
from keras_bert_flow.backends.runtime import is_torch_on_processor
from keras_bert_flow.backends.values import read_variable

INITIAL_SCALE = 2.0**15
LARGEST_SCALE = 2.0**24  # a larger one gains nothing for the float32 parts of a model
GROWTH_STEPS = 2000
DEFAULT_ADVICE = "Lower the learning rate, or look for damaged input."


class NotFiniteError(ValueError):
    """A loss, a gradient or a score was NaN or infinite."""


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class GuardedOptimizer(keras.optimizers.Optimizer):
    """Wrap an optimizer to detect non-finite gradients, skip such steps, and scale the loss.

    Nothing here waits for the device: non-finite steps are recorded in variables, which `check` reads at a border. If
    it only stops, it changes nothing else, and the weights may be NaN from that step to the border. If it skips steps
    or scales the loss, a skipped step leaves weights, moments and step count of the inner optimizer unchanged.

    `keras.optimizers.LossScaleOptimizer` is not used, for three reasons. It hides batches from an optimizer that
    accumulates them, whose steps then begin in the middle of a batch. Its name, and so that of its state in a
    checkpoint, counts the optimizers of the process. And it halves the scale forever, where NaN that is not due to the
    scale should end the run.

    Args:
        inner_optimizer: may accumulate batches itself only if no steps are skipped.
        max_skipped_steps: maximum number of consecutive skipped steps; 0: stop at the first non-finite step.
        accumulate_batches: number of batches whose mean gradient makes a step, if steps are skipped.
        scales_loss: multiply the loss by a scale, so that gradients do not underflow in float16. The scale is halved at
            each step with non-finite gradients, which is no error while it is above 1, and doubled after 2,000 finite
            steps.
        paced: the schedule of the inner optimizer, if it is one whose pace may change; its variables are kept here.
        advice: what to do about a step that is not finite, at the end of the message.
        turns: weight path → first step in which the weight is trained, from 0, and the step after the last. Until the
            end of the last turn, all else stays as it is to the bit, its moments too, and does not count in the norm
            that gradients are clipped by. From then on all weights are trained. Default: in every step.
    Source of the scale: Micikevicius et al. 2018, section 3.2, arXiv:1710.03740; the factors are those of Keras.
    """

    def __init__(
        self,
        inner_optimizer,
        max_skipped_steps=0,
        accumulate_batches=1,
        scales_loss=False,
        paced=None,
        name="guard",
        advice=DEFAULT_ADVICE,
        turns=None,
        **kwargs,
    ):
        super().__init__(learning_rate=0.0, name=name, **kwargs)
        self.inner_optimizer = inner_optimizer
        self.max_skipped_steps = max_skipped_steps
        self.accumulate_batches = accumulate_batches
        self.scales_loss = scales_loss
        self.paced = paced
        self.advice = advice
        self.turns = dict(turns or {})
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
        self._row = self._add_number("row")  # consecutive non-finite steps, except those due to the loss scale
        self._failed_step = self._add_number("failed_step")
        self._failed_weights = self.add_variable((len(variables),), dtype="int32", name="failed_weights")
        if self.scales_loss:
            self._scale = self._add_number("scale", "float32", keras.initializers.Constant(INITIAL_SCALE))
            self._steps_at_scale = self._add_number("steps_at_scale")
        if self.leaves_out and self.accumulate_batches > 1:
            self._sums = self.add_optimizer_variables(variables, "sum")
        # By path here: on TensorFlow the variables of a step have other names.
        self._turns = np.array([self.turns.get(variable.path, (0, 0)) for variable in variables], "int32")
        if self.paced is not None:
            self.paced.build(self._add_number)
        self.inner_optimizer.build(variables)
        super().build(variables)

    def _add_number(self, name, dtype="int32", initializer="zeros"):
        return self.add_variable((), dtype=dtype, initializer=initializer, aggregation="only_first_replica", name=name)

    @property
    def variables(self):
        return [*super().variables, *self.inner_optimizer.variables]

    @property
    def iterations(self):
        """Number of steps taken, without skipped ones."""
        return self.inner_optimizer.iterations

    @property
    def steps(self) -> int:
        """Number of steps taken or skipped."""
        return _to_int(self._batches) // self._batches_per_step if self.built else 0

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    def scale_loss(self, loss):
        """Multiply the loss by the scale; a non-finite loss becomes NaN, so that every gradient is NaN as well."""
        scale = ops.cast(self._scale if self.scales_loss else 1.0, loss.dtype)
        return ops.multiply(loss, ops.where(ops.isfinite(loss), scale, ops.cast(float("nan"), loss.dtype)))

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        gradients, variables = dense_gradients(grads), list(trainable_variables or self._trainable_variables)
        is_last = ops.equal((self._batches + 1) % self._batches_per_step, 0)
        are_due = self._find_due() if self.turns else None
        if are_due is not None:
            gradients = [
                None if gradient is None else ops.where(is_due, gradient, ops.zeros_like(gradient))
                for gradient, is_due in zip(gradients, are_due, strict=True)
            ]
        if self.leaves_out:  # their unscaled mean, valid at the last batch of a step
            if self.accumulate_batches > 1:
                gradients = [ops.add(sum_, gradient) for sum_, gradient in zip(self._sums, gradients, strict=True)]
                for sum_, gradient in zip(self._sums, gradients, strict=True):
                    sum_.assign(ops.where(is_last, ops.zeros_like(gradient), gradient))
            divisor = self.accumulate_batches * (self._scale if self.scales_loss else 1.0)
            gradients = [None if gradient is None else ops.divide(gradient, divisor) for gradient in gradients]
        sums = [0.0 if gradient is None else ops.sum(gradient) for gradient in gradients]  # NaN and infinity propagate
        are_finite = ops.isfinite(ops.stack(sums))
        is_finite = ops.all(are_finite)
        if self.leaves_out:
            self._apply_if(ops.logical_and(is_last, is_finite), gradients, variables, are_due)
        else:
            self._apply_due(gradients, variables, are_due)
        self._take_note(is_last, is_finite, are_finite)

    def _find_due(self):
        """Return whether each weight is trained in this step: bools if steps run at once on a CPU, else tensors."""
        first, end = self._turns.T
        last = int(end.max())
        if is_torch_on_processor():
            step = _to_int(self._batches) // self._batches_per_step
            return ((step >= last) | ((first <= step) & (step < end))).tolist()
        step = self._batches // self._batches_per_step
        has_begun, has_ended = ops.convert_to_tensor(first) <= step, ops.convert_to_tensor(end) <= step
        are_due = ops.logical_or(step >= last, ops.logical_and(has_begun, ops.logical_not(has_ended)))
        return [are_due[index] for index in range(len(end))]

    def _apply_due(self, gradients, variables, are_due):
        """Take a step of the inner optimizer that changes only the weights that are due, and their moments."""
        inner = self.inner_optimizer
        if are_due is None:
            inner.apply(gradients, variables)
        elif isinstance(are_due[0], bool):
            chosen = [
                pair for pair, is_due in zip(zip(gradients, variables, strict=True), are_due, strict=True) if is_due
            ]
            inner.apply([gradient for gradient, _ in chosen], [variable for _, variable in chosen])
        else:
            # Weight decay and the moments of earlier steps would move a weight without a gradient, so values are put
            # back. Keras leaves this private method to subclasses.
            indices = [inner._get_variable_index(variable) for variable in variables]
            kept = [
                (place, ops.copy(ops.convert_to_tensor(place.value)), is_due)
                for variable, index, is_due in zip(variables, indices, are_due, strict=True)
                for place in (variable, inner._momentums[index], inner._velocities[index])
            ]
            inner.apply(gradients, variables)
            for place, before, is_due in kept:
                place.assign(ops.where(is_due, ops.convert_to_tensor(place.value), before))

    def _apply_if(self, is_wanted, gradients, variables, are_due):
        if keras.backend.backend() != "jax":
            ops.cond(is_wanted, lambda: self._apply_due(gradients, variables, are_due), lambda: None)
            return
        # Selecting each value costs less in JAX than a branch, which would compile both sides and copy the state.
        state = [*variables, *self.inner_optimizer.variables]
        before = [variable.value for variable in state]
        self._apply_due(gradients, variables, are_due)
        for variable, value in zip(state, before, strict=True):
            variable.assign(ops.where(is_wanted, variable.value, value))

    def _take_note(self, is_last, is_finite, are_finite):
        """Count the batch and, at the last batch of a step, record whether the step was finite."""
        is_good, is_bad = ops.logical_and(is_last, is_finite), ops.logical_not(is_finite)
        if self.leaves_out:
            is_bad = ops.logical_and(is_last, is_bad)
            self._skipped_steps.assign_add(ops.cast(is_bad, "int32"))
        if self.scales_loss:
            is_overflow = ops.logical_and(is_bad, self._scale > 1)
            is_bad = ops.logical_and(is_bad, ops.logical_not(is_overflow))
            steps = ops.where(is_overflow, 0, self._steps_at_scale + ops.cast(is_good, "int32"))
            grows = steps >= GROWTH_STEPS
            factor = ops.where(is_overflow, 0.5, ops.where(grows, 2.0, 1.0))
            self._scale.assign(ops.minimum(self._scale * factor, LARGEST_SCALE))
            self._steps_at_scale.assign(ops.where(grows, 0, steps))
        self._row.assign(ops.where(is_good, 0, self._row + ops.cast(is_bad, "int32")))
        fails = ops.logical_and(self._row > self.max_skipped_steps, ops.equal(self._failed_step, 0))
        step = self._batches // self._batches_per_step + 1
        self._failed_step.assign(ops.where(fails, step, self._failed_step.value))
        are_bad = ops.cast(ops.logical_not(are_finite), "int32")
        self._failed_weights.assign(ops.where(fails, are_bad, self._failed_weights.value))
        self._batches.assign_add(1)

    def check(self) -> dict[str, float]:
        """Return the entries for a line of the log: the number of skipped steps, and the loss scale.

        Raises:
            NotFiniteError: a step, or too many consecutive ones, were not finite.
        """
        step = _to_int(self._failed_step)
        if step:
            are_bad = read_variable(self._failed_weights).astype(bool)
            what = "the loss"  # see `scale_loss`
            if not are_bad.all():
                watched = self._trainable_variables  # Keras leaves this private attribute to subclasses
                paths = [variable.path for variable, is_bad in zip(watched, are_bad, strict=True) if is_bad]
                what = f"the gradients of {len(paths)} of {len(are_bad)} weights (the first is {paths[0]})"
            row = f", the last of {self.max_skipped_steps + 1} such in a row" if self.max_skipped_steps else ""
            raise NotFiniteError(
                f"Loss and gradients must be finite. Received: NaN or infinity in {what} at step {step}{row}. "
                f"{self.advice}"
            )
        facts = {"skipped_steps": _to_int(self._skipped_steps)} if self.leaves_out else {}
        return facts | ({"loss_scale": float(read_variable(self._scale))} if self.scales_loss else {})

    def reset(self) -> None:
        """Reset to the state before the first step."""
        for variable in self.variables:
            variable.assign(ops.zeros_like(variable.value))
        if self.scales_loss:
            self._scale.assign(INITIAL_SCALE)
        if self.paced is not None:
            self.paced.set_pace(0, 0, 1)

    def get_config(self):
        names = ("name", "max_skipped_steps", "accumulate_batches", "scales_loss")
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {name: getattr(self, name) for name in names} | {"inner_optimizer": inner}

    @classmethod
    def from_config(cls, config):
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"])
        return cls(**(config | {"inner_optimizer": inner}))


def _to_int(variable) -> int:
    return int(np.asarray(read_variable(variable)))
