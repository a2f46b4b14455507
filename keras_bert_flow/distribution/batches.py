"""Check that batches divide evenly over devices; importable without a backend."""

import os

from keras_bert_flow.config.pipeline import PipelineConfig

DATA_PARALLEL, MODEL_PARALLEL, TPU = "data_parallel", "model_parallel", "tpu"


def check_devices(config: PipelineConfig, backend: str) -> None:
    """Check what can be checked of the section `distribution` before devices are detected.

    Raises:
        ValueError: the backend does not support it, or a batch does not divide over the requested number of devices.
    """
    settings = config.distribution
    check_kind(settings.kind, backend)
    if settings.devices is not None and settings.kind != "single":
        check_batches(config, max(1, settings.devices // (settings.model_parallel or 1)))
    if backend == "torch":
        check_torch_processes(settings.kind, settings.devices, int(os.environ.get("WORLD_SIZE", "1")))


def check_kind(kind: str, backend: str) -> None:
    """Raise ValueError for a kind of distribution that the backend does not support."""
    if kind == MODEL_PARALLEL and backend != "jax":
        raise ValueError(
            f"`distribution.kind: model_parallel` needs jax. Received: backend={backend}. Choose data_parallel."
        )
    if kind == TPU and backend == "torch":
        raise ValueError(
            "`distribution.kind: tpu` needs jax or tensorflow. Received: backend=torch. Choose another kind."
        )


def check_torch_processes(kind: str, devices: int | None, processes: int) -> None:
    """Raise ValueError for several devices in one process, since PyTorch uses one device per process."""
    if processes == 1 and (kind == DATA_PARALLEL or (devices or 1) > 1):
        raise ValueError(
            f"With torch each device needs a process. Received: distribution.kind={kind} in one process. "
            "Start `torchrun --nproc-per-node N -m keras_bert_flow pretrain ...`, or set distribution.kind=auto."
        )


def check_batches(config: PipelineConfig, devices: int) -> None:
    """Check the batches of both phases up front: the second may begin days after the first."""
    for phase, section in zip(config.phases, ("pretraining", "second_phase"), strict=False):
        check_batch(phase.pretraining.batch_size, phase.pretraining.accumulate_batches, devices, section)


def check_batch(batch_size: int, parts: int, devices: int, section: str = "pretraining") -> None:
    """Check that the accumulated parts of a batch divide evenly over the devices.

    Args:
        section: the section of the configuration with the batch size, for the message.
    Raises:
        ValueError: they do not.
    """
    if batch_size % (parts * devices):
        of_parts = f" and accumulate_batches={parts}" if parts > 1 else ""
        size = max(1, round(batch_size / (parts * devices))) * parts * devices
        raise ValueError(
            f"Each device must get as many sequences. Received: {section}.batch_size={batch_size} for {devices} "
            f"devices{of_parts}. Try batch_size={size}, or set distribution.devices or distribution.kind=single."
        )
