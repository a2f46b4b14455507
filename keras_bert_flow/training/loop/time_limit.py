"""End a run within a given time: measure the speed as it goes, and take fewer but longer steps of the schedule."""

import math

from keras_bert_flow.training.optimizers.schedules import PacedSteps

FIRST_STEPS = 5  # before the first measurement; on jax they include the compilation
CHECK_SECONDS = 5.0  # between two measurements
MEMORY_SECONDS = 30.0  # how far back the speed is measured: the load of a machine changes
RESERVED_SHARE, RESERVED_SECONDS = 0.02, 1.0  # of the time, for what comes after the last step


class TimeLimit:
    """Last step of a run that has to end within a time.

    At each measurement the number of steps that still fit is the time left by the seconds per step. If they are fewer
    than those left of the schedule, each counts for several of its steps, so that the learning rate still decays to
    its end. If the machine gets faster, they count for fewer again, but never for less than one.

    Args:
        seconds: of training and evaluation, including those before a restart.
        total_steps: of the schedule; a faster machine takes no more.
        schedule: whose pace is set.
        least_steps: taken in any case, however long they take.
        final_evaluations: how many evaluations there are after the last step.
    """

    def __init__(
        self,
        seconds: float,
        total_steps: int,
        schedule: PacedSteps,
        least_steps: int = 0,
        final_evaluations: int = 1,
    ):
        self.last_step = total_steps
        self._total_steps, self._schedule = total_steps, schedule
        self._least_steps = min(least_steps, total_steps)
        self._seconds = seconds * (1 - RESERVED_SHARE) - RESERVED_SECONDS
        self._measured: list[tuple[int, float]] = []  # (step, seconds elapsed by then) of this process
        self._final_evaluations, self._evaluation_seconds = final_evaluations, 0.0

    def resume(self, last_step: int) -> None:
        self.last_step = last_step

    def next_measurement(self, step: int) -> int:
        """Return the step after which to measure."""
        seconds = self._find_step_seconds()
        return step + (FIRST_STEPS if seconds is None else max(1, int(CHECK_SECONDS / seconds)))

    def note_evaluation(self, seconds: float) -> None:
        """Note the duration of an evaluation, which those after the last step are taken to have."""
        self._evaluation_seconds = seconds

    def correct(self, step: int, elapsed_seconds: float) -> None:
        """Set the last step and the pace to what fits; `step` steps took `elapsed_seconds`."""
        self._measured.append((step, elapsed_seconds))
        while len(self._measured) > 2 and elapsed_seconds - self._measured[1][1] > MEMORY_SECONDS:
            del self._measured[0]
        left = self._seconds - self._final_evaluations * self._evaluation_seconds - elapsed_seconds
        step_seconds = self._find_step_seconds()
        if step_seconds is not None or left <= 0:
            place = self._schedule.find_place(step)
            fitting = 0 if step_seconds is None or left <= 0 else int(left / step_seconds)
            steps = min(max(fitting, self._least_steps - step), math.ceil(self._total_steps - place))
            self.last_step = step + max(0, steps)
            if steps > 0:
                self._schedule.set_pace(step, place, (self._total_steps - place) / steps)

    def _find_step_seconds(self) -> float | None:
        """Return the seconds per step lately; the first measurement, with the compilation, only begins to count."""
        if len(self._measured) < 2:
            return None
        (first, before), (last, after) = self._measured[0], self._measured[-1]
        return max(1e-6, (after - before) / max(1, last - first))
