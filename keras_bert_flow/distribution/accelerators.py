"""Detect whether the accelerator of a backend supports bfloat16; a program run by `config.machine`."""

import sys

AMPERE = (8, 0)  # NVIDIA's first compute capability with bfloat16


def has_bfloat16(backend: str) -> bool | None:
    """Return whether the first accelerator supports bfloat16; None if this backend has no accelerator."""
    if backend == "torch":
        import torch

        if not torch.cuda.is_available():
            return None
        return torch.version.hip is not None or torch.cuda.get_device_capability() >= AMPERE
    if backend == "jax":
        import jax

        device = jax.devices()[0]
        if device.platform == "cpu":
            return None
        capability = getattr(device, "compute_capability", None)  # "9.0"; a TPU has none
        return device.platform == "tpu" or (capability is not None and float(capability) >= AMPERE[0])
    import tensorflow

    if tensorflow.config.list_physical_devices("TPU"):
        return True
    devices = tensorflow.config.list_physical_devices("GPU")
    if not devices:
        return None
    details = tensorflow.config.experimental.get_device_details(devices[0])
    return details.get("compute_capability", (0, 0)) >= AMPERE


if __name__ == "__main__":
    sys.stdout.write({True: "yes", False: "no", None: "none"}[has_bfloat16(sys.argv[1])])
