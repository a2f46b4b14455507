"""Set up the devices and processes that a configuration asks for, or fail with one line before any training."""

import json
import logging
import os
from typing import NamedTuple

import keras

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import DistributionConfig
from keras_bert_flow.distribution.cluster import (
    DATA_PARALLEL,
    MODEL_PARALLEL,
    SINGLE,
    TPU,
    Cluster,
    check_batches,
    check_kind,
    check_torch_processes,
)
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import find_family

AUTO, SINGLE_DEVICE = "auto", "single"
ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"  # names the other processes to `keras.distribution.initialize`
_logger = logging.getLogger(__name__)


def start_cluster(config: PipelineConfig, shape: EncoderShape) -> Cluster:
    """Join the other processes of a run, if any, and return its devices and processes.

    Call this before anything is computed on a device. The environment defines the processes: TF_CONFIG, the variables
    of `torchrun`, or for JAX those of `keras.distribution.initialize`.

    Args:
        config: its sections `distribution` and `pretraining` are used.
        shape: shape of the encoder.
    Raises:
        ValueError: the backend or the devices do not support it, or a batch does not divide evenly.
    """
    backend, settings = keras.backend.backend(), config.distribution
    check_kind(settings.kind, backend)
    starts = {"jax": _start_jax, "tensorflow": _start_tensorflow, "torch": _start_torch}
    return starts[backend](config, settings, shape)


class Meeting(NamedTuple):
    """Where the processes of a run meet: the number of this one, how many there are, and the address of the first."""

    rank: int
    processes: int
    address: str


def find_meeting() -> Meeting | None:
    """Return what the environment says of several processes; None if this is the only one."""
    environment, backend = os.environ, keras.backend.backend()
    if backend == "torch" and int(environment.get("WORLD_SIZE", 1)) > 1:
        address = f"{environment.get('MASTER_ADDR', '?')}:{environment.get('MASTER_PORT', '?')}"
        return Meeting(int(environment.get("RANK", 0)), int(environment["WORLD_SIZE"]), address)
    if backend == "jax" and (addresses := environment.get(ADDRESSES)):
        rank, processes = (
            int(environment.get(f"KERAS_DISTRIBUTION_{name}", 0)) for name in ("PROCESS_ID", "NUM_PROCESSES")
        )
        return Meeting(rank, processes, addresses.partition(",")[0]) if processes > 1 else None
    if backend == "tensorflow":
        described = json.loads(environment.get("TF_CONFIG") or "{}")
        workers = [address for role in ("chief", "worker") for address in described.get("cluster", {}).get(role, ())]
        task, chiefs = described.get("task", {}), described.get("cluster", {}).get("chief", ())
        rank = task.get("index", 0) + (len(chiefs) if task.get("type") == "worker" else 0)
        return Meeting(rank, len(workers), workers[0]) if len(workers) > 1 else None
    return None


def check_count(wanted: int | None, found: int, processes: int = 1) -> int:
    """Return the number of devices to use.

    Raises:
        ValueError: there are too few devices, or several processes would leave one unused.
    """
    if wanted is not None and (wanted > found or (processes > 1 and wanted < found)):
        rule = "must be all that the processes have" if processes > 1 else "must be there"
        raise ValueError(f"`distribution.devices` {rule}. Received: devices={wanted}, found {found}.")
    return wanted or found


def _start_jax(config, settings: DistributionConfig, shape: EncoderShape) -> Cluster:
    import jax

    from keras_bert_flow.distribution.jax_cluster import JaxCluster, make_layout

    if ADDRESSES in os.environ and not jax.distributed.is_initialized():
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # no effect on other devices
        keras.distribution.initialize()
    processes = jax.process_count()
    _check_single(settings, processes)
    if settings.kind == TPU and jax.default_backend() != TPU:
        raise ValueError(f"`distribution.kind: tpu` must find a TPU. Received: {jax.default_backend()} devices only.")
    count = 1 if settings.kind == SINGLE_DEVICE else check_count(settings.devices, jax.device_count(), processes)
    if count == 1 and settings.kind != MODEL_PARALLEL:
        return _take_one(settings)
    parts, copies = max(phase.pretraining.accumulate_batches for phase in config.phases), count
    if settings.model_parallel is not None:  # kind: model_parallel
        layout = make_layout(shape, find_family(config.model.family).sharding, settings.model_parallel)
        if count % settings.model_parallel or processes > 1:
            raise ValueError(
                "`distribution.model_parallel` must divide the devices of one process. Received: "
                f"model_parallel={settings.model_parallel}, {count} devices in {processes} processes."
            )
        copies = count // settings.model_parallel
    check_batches(config, copies)
    if parts > 1 and processes > 1:
        raise ValueError(
            "With jax, `accumulate_batches` needs a single process. Received: "
            f"accumulate_batches={parts}, {processes} processes. Set it to 1."
        )
    if settings.model_parallel is not None:
        return JaxCluster(count, layout, settings.model_parallel)
    return JaxCluster(count)


def _start_tensorflow(config, settings: DistributionConfig, shape: EncoderShape) -> Cluster:
    from keras_bert_flow.distribution import tensorflow_cluster as cluster

    processes = cluster.count_processes()
    _check_single(settings, processes)
    count = 1
    if processes == 1 and settings.kind in (AUTO, DATA_PARALLEL):
        count = check_count(settings.devices, len(cluster.list_devices()))
    if count == processes == 1 and settings.kind != TPU:
        return _take_one(settings)
    parts = max(phase.pretraining.accumulate_batches for phase in config.phases)
    if parts > 1:
        raise ValueError(
            "Under TensorFlow's strategies Keras cannot accumulate batches. Received: "
            f"accumulate_batches={parts}. Set it to 1, or take distribution.kind=single, jax or torch."
        )
    if config.pretraining.precision == "mixed_float16":
        raise ValueError(
            "Under TensorFlow's strategies Keras cannot scale losses. Received: pretraining.precision=mixed_float16. "
            "Take mixed_bfloat16, or distribution.kind=single."
        )
    if config.pretraining.non_finite == "skip":
        raise ValueError(
            "Under TensorFlow's strategies a step cannot be left out. Received: pretraining.non_finite=skip. "
            "Set it to stop, or take distribution.kind=single, jax or torch."
        )
    strategy = cluster.make_strategy(count, settings.kind == TPU)
    check_count(settings.devices, strategy.num_replicas_in_sync, processes)
    check_batches(config, strategy.num_replicas_in_sync)
    return cluster.TensorFlowCluster(strategy)


def _start_torch(config, settings: DistributionConfig, shape: EncoderShape) -> Cluster:
    import torch

    from keras_bert_flow.distribution.torch_cluster import TorchCluster

    processes = int(os.environ.get("WORLD_SIZE", 1))  # started by `torchrun`; 1 without it
    _check_single(settings, processes)
    check_torch_processes(settings.kind, settings.devices, processes)
    if processes == 1:
        devices = torch.cuda.device_count()
        if settings.kind == AUTO and devices > 1:
            _logger.warning("One of %d devices is used; `torchrun --nproc-per-node %d` takes all.", devices, devices)
        return SINGLE
    version = tuple(map(int, keras.__version__.split(".")[:2]))
    if version >= (3, 16):
        raise ValueError(
            "Several torch processes need Keras 3.15: later ones average the gradients themselves, which would be a "
            f"second time. Received: Keras {keras.__version__}. pip install 'keras<3.16'"
        )
    check_count(settings.devices, processes, processes)
    check_batches(config, processes)
    return TorchCluster(config.pretraining.accumulate_batches)


def _take_one(settings: DistributionConfig) -> Cluster:
    if settings.kind == DATA_PARALLEL:
        raise ValueError(
            "`distribution.kind: data_parallel` must find several devices. Received: one. Choose auto or single."
        )
    return SINGLE


def _check_single(settings: DistributionConfig, processes: int) -> None:
    """Raise ValueError if `kind: single` is set for one of several processes."""
    if settings.kind == SINGLE_DEVICE and processes > 1:
        names = ("WORLD_SIZE", "TF_CONFIG", "KERAS_DISTRIBUTION_NUM_PROCESSES")
        given = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
        raise ValueError(
            f"`distribution.kind: single` is for one process. Received: {processes}, by {given or 'the environment'}. "
            "Start one, or choose data_parallel."
        )
