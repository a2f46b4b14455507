"""Section `distribution`."""

from typing import Literal

from pydantic import Field, model_validator

from keras_bert_flow.config.settings import Settings


class DistributionConfig(Settings):
    """How pre-training is distributed over devices; it changes results by rounding only, so it is part of no key."""

    kind: Literal["auto", "single", "data_parallel", "model_parallel", "tpu"] = Field(
        "auto",
        description="`data_parallel`: each device computes rows of a batch; `model_parallel`: several share a copy "
        "of the model (jax); `tpu`: data_parallel, refused if there is none; `auto`: by the devices that the process "
        "finds.",
    )
    devices: int | None = Field(
        None,
        ge=1,
        description="Number of devices of all processes together. Default: all. With torch each process has one.",
    )
    model_parallel: int | None = Field(
        None, ge=2, description="Devices that share one copy of the model, for `kind: model_parallel`."
    )

    @model_validator(mode="after")
    def _check_model_parallel(self):
        if (self.kind == "model_parallel") != (self.model_parallel is not None):
            raise ValueError(
                "`kind: model_parallel` and `model_parallel`, the devices of one copy, go together. Received: "
                f"kind={self.kind}, model_parallel={self.model_parallel}"
            )
        return self
