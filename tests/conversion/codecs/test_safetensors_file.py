import os

import numpy as np
import pytest

from keras_bert_flow.conversion.codecs.safetensors_file import open_floats, write_tensors


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_weights_follow_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_tensors(tmp_path / "model.safetensors", {"a": np.ones(3)})
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == mode
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    write_tensors(tmp_path / "model.safetensors", {"fine": np.ones(3), "broken": np.array([1.0, value])})
    with pytest.raises(ValueError, match=r"model\.safetensors: weights must be finite. Received: broken with NaN"):
        open_floats(tmp_path / "model.safetensors").check_finite()
