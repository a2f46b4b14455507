import doctest
import subprocess
import sys
from typing import get_args

import pytest

from keras_bert_flow import by_name
from keras_bert_flow.by_name import Registry
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import ModelConfig, PretrainingConfig
from keras_bert_flow.conversion.tables.table import TABLES
from keras_bert_flow.models.families.family import FAMILIES
from keras_bert_flow.models.pretraining import replaced_tokens, span_boundary
from keras_bert_flow.models.saved_as import PRETRAINERS
from keras_bert_flow.models.sizes import MAX_SPAN_TARGETS, SIZES
from keras_bert_flow.text.objectives import OBJECTIVES, mlm_sbo
from keras_bert_flow.tracking.__main__ import LOGGERS
from keras_bert_flow.training.optimizers.adam import OPTIMIZERS
from keras_bert_flow.training.optimizers.schedules import DECAYS, START, WARMUP

pytestmark = pytest.mark.any_backend


def test_registry_keeps_its_example():
    assert doctest.testmod(by_name) == (0, 4)


@pytest.mark.parametrize("name", [None, 1, ["json"], {"a": 1}])
def test_name_that_is_no_text_is_refused(name):
    with pytest.raises(ValueError, match=r"^A thing must be one of json, re\. Received: .*\. Use one of these\.$"):
        Registry("A thing", {"json": "json:loads", "re": "re:compile"}).find(name)


def test_entry_is_imported_when_it_is_found():
    code = (
        "import sys; before = {*sys.modules}; from keras_bert_flow.by_name import Registry;"
        "loaded = {name.split('.')[0] for name in {*sys.modules} - before};"
        "assert loaded <= {'keras_bert_flow', *sys.stdlib_module_names}, loaded;"
        "entries = Registry('A colour', {'red': 'colorsys:rgb_to_hls'}); entries.check('red');"
        "assert 'colorsys' not in sys.modules; entries.find('red'); assert 'colorsys' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_registries_of_the_same_names_agree():
    """Registries without Keras, and those of what needs it."""
    assert TABLES.keys() == FAMILIES.keys()
    assert PRETRAINERS.keys() == OBJECTIVES.keys()
    assert OBJECTIVES.find("rtd").families == replaced_tokens.FAMILIES


def test_objective_and_head_agree_on_the_targets_of_a_span():
    assert mlm_sbo.MAX_SPAN_TARGETS == MAX_SPAN_TARGETS
    assert span_boundary.PLACES == (mlm_sbo.LEFT, mlm_sbo.RIGHT, mlm_sbo.OFFSETS)


def test_settings_name_what_is_registered():
    """A configuration is checked before what needs Keras or a server's package is imported."""
    fields = PretrainingConfig.model_fields
    assert get_args(ModelConfig.model_fields["size"].annotation) == (*SIZES,)
    assert get_args(fields["optimizer"].annotation) == OPTIMIZERS
    assert get_args(fields["decay"].annotation) == DECAYS
    assert get_args(fields["decay_from"].annotation) == (WARMUP, START)
    assert get_args(get_args(PipelineConfig.model_fields["loggers"].annotation)[0]) == (*LOGGERS,)
