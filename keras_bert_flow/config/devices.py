"""A device that a file describes, for `kbf run --plan --device FILE`."""

from typing import Annotated

from pydantic import Field

from keras_bert_flow.config.limits import Settings

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class DeviceFile(Settings):
    """A device by what differs from a known one, as a YAML or JSON file has it."""

    like: str = Field(description="A known device, which has all that is left out, such as h200 or v5e-8.")
    memory_bytes: Positive | None = Field(None, description="Memory of a chip, in bytes.")
    bytes_per_second: Positive | None = Field(None, description="Bandwidth of that memory.")
    peak_flops: Positive | None = Field(None, description="Dense bfloat16 products of a chip, in FLOP/s.")
    float32_flops: Positive | None = Field(
        None,
        description="Float32 products as JAX computes them. Default: half of peak_flops on a GPU, all on a TPU.",
    )
    link_bytes_per_second: Positive | None = Field(None, description="What a chip sends to other chips.")
    title: str | None = Field(
        None, pattern=r"^[\w .,()/+-]+$", description="Of a GPU: its name for XLA, such as NVIDIA H200."
    )
    cores: Count | None = Field(None, description="Of a GPU: streaming multiprocessors.")
    fpus: Count | None = Field(None, description="Of a GPU: float32 units of a core.")
    threads: Count | None = Field(None, description="Of a GPU: threads of a core at most.")
    capability: tuple[Count, Annotated[int, Field(ge=0)]] | None = Field(
        None, description="Of a GPU: compute capability, such as [9, 0]."
    )
    gigahertz: Positive | None = Field(None, description="Of a GPU: clock rate.")
    cache_bytes: Count | None = Field(None, description="Of a GPU: L2 cache.")
    shared_bytes: Count | None = Field(None, description="Of a GPU: shared memory of a core.")
    topology: str | None = Field(
        None, pattern=r"^\d+(x\d+){1,2}$", description="Of a TPU: arrangement of the chips, such as 2x4."
    )
