"""The stages of a run: the inputs, the settings in the key, the revision and the command of each.

Used by commands, flows and reports, without Keras and without Prefect.
"""

from keras_bert_flow.results.stages.data import CORPUS, RECORDS, VOCABULARY
from keras_bert_flow.results.stages.models import DISTILLATION, PRETRAINING
from keras_bert_flow.results.stages.tasks import AUGMENTATION, EVALUATION, FINETUNING

IN_ORDER = (CORPUS, VOCABULARY, RECORDS, PRETRAINING, DISTILLATION, AUGMENTATION, FINETUNING, EVALUATION)
STAGES = {stage.name: stage for stage in IN_ORDER}
