"""Devices by name, and those that a file describes."""

import json
from dataclasses import replace

import pytest

from keras_bert_flow.checks.devices import GPUS, find_device

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    ("name", "chips", "topology", "gigabytes"),
    [
        ("v5e-8", 8, "v5e:2x4", 16),
        ("v5p-16", 8, "v5p:2x2x2", 95),
        ("v5p-32", 16, "v5p:2x2x4", 95),
        ("h200", 1, "1x1x1", 141),
    ],
)
def test_devices_have_their_chips(name, chips, topology, gigabytes):
    device = find_device(name)
    assert (device.chips, device.topology, device.memory_bytes) == (chips, topology, gigabytes * 1e9)
    assert ("core_count" in device.target) == (name in GPUS)


@pytest.mark.parametrize("name", ["h1000", "v5e-7", "v5p-8x", "v5e", "v5e-512", ""])
def test_unknown_devices_are_refused(name):
    with pytest.raises(
        ValueError, match=r"A device must be one of h100, .*such as v4-8, v5e-4, .*or a file .*Received: "
    ):
        find_device(name)


def write(folder, text):
    path = folder / "device.yaml"
    path.write_text(text)
    return str(path)


def test_file_describes_a_gpu_by_what_differs_from_a_known_one(tmp_path):
    memory = "memory_bytes: 180e9\nbytes_per_second: 7.7e12\n"
    text = f"like: h200\n{memory}peak_flops: 2.2e15\ncores: 148\ncapability: [10, 0]\n"
    device, known = find_device(write(tmp_path, text)), find_device("h200")
    assert (device.memory_bytes, device.bytes_per_second, device.peak_flops) == (180e9, 7.7e12, 2.2e15)
    assert device.float32_flops == 1.1e15 and device.name == str(tmp_path / "device.yaml")
    changed = dict(zip(device.target.splitlines(), known.target.splitlines(), strict=True))
    assert {line: before for line, before in changed.items() if line != before} == {
        "core_count: 148": "core_count: 132",
        "memory_bandwidth: 7700000000000": "memory_bandwidth: 4800000000000",
        "device_memory_size: 180000000000": "device_memory_size: 141000000000",
        "cuda_compute_capability { major: 10 minor: 0 }": "cuda_compute_capability { major: 9 minor: 0 }",
    }


def test_file_describes_a_slice_of_another_arrangement(tmp_path):
    path = tmp_path / "slice.json"
    path.write_text(json.dumps({"like": "v5e-8", "topology": "1x4", "link_bytes_per_second": 1e11, "peak_flops": 1e14}))
    expected = {"chips": 4, "topology": "v5e:1x4", "peak_flops": 1e14, "float32_flops": 1e14}
    assert find_device(str(path)) == replace(
        find_device("v5e-8"), name=str(path), link_bytes_per_second=1e11, **expected
    )


def test_file_of_a_known_name_alone_is_that_device(tmp_path):
    for name in ("a100", "v5p-16"):
        path = write(tmp_path, f"like: {name}\n")
        assert find_device(path) == replace(find_device(name), name=path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory_bytes: 1e9", "`like`: Field required"),
        ("like: h2000", "A device must be one of .*Received: h2000"),
        ("like: other.yaml", "`like` must be the name of a known device. Received: other.yaml. Try h200"),
        ("like: h200\nmemory: 1e9", "`memory` is no known setting. Valid names: like, memory_bytes, "),
        ("like: h200\nmemory_bytes: -1", "`memory_bytes`: .*greater than 0. Received: -1"),
        ("like: h200\ncapability: [-1, 0]", "`capability.0`: .*greater than 0. Received: -1"),
        ("like: h200\ntitle: 'H\"200'", "`title`: .* Received: 'H\"200'"),
        ("like: h200\ntopology: 2x2", "`topology` must not be given for a GPU. Received: like: h200. Leave it out"),
        ("like: v5e-8\ncores: 9", "`cores` must not be given for a TPU. Received: like: v5e-8. Leave it out"),
        ("like: v5e-8\ntopology: 2x2x2", "`topology` must have as many axes .* Received: 2x2x2. Try 2x4"),
        ("like: v5e-8\ntopology: 2x0", "`topology` must have as many axes .* Received: 2x0. Try 2x4"),
        ("like: v5e-8\ntopology: wide", "`topology`: .* Received: 'wide'"),
        ("- h200", "must be `key: value` lines"),
    ],
)
def test_files_that_describe_no_device_are_refused(tmp_path, text, words):
    with pytest.raises(ValueError, match=words) as raised:
        find_device(write(tmp_path, text))
    assert "\n" not in str(raised.value)


def test_missing_file_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"The description of a device must be a file\. Received: .*no\.yaml"):
        find_device(str(tmp_path / "no.yaml"))
