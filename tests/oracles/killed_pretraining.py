"""Pre-train twice, once with a kill on the way, and return the weights of both."""

import pytest

from keras_bert_flow.training.pretraining.pretrain import pretrain


class Killed(BaseException):
    """No error that the code under test could take for one of its own."""


def pretrain_killed_and_whole(config, records, folder, report=lambda line: None):
    """Return the weights of a run that is killed after step 3 and run again with `report`, and of one that is not."""

    def die(line):
        if line["step"] > 3:
            raise Killed

    finished = pretrain(config, records, folder / "finished", lambda line: None)
    with pytest.raises(Killed):
        pretrain(config, records, folder / "killed", die)
    killed = pretrain(config, records, folder / "killed", report)
    return tuple((run / "model" / "model.safetensors").read_bytes() for run in (killed, finished))
