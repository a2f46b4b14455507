"""The stages of a run, one per module: the inputs, the settings in the key, the revision and the command of each.

Used by commands, flows and reports, without Keras and without Prefect.
"""

from keras_bert_flow.results.stages.augmentation import AUGMENTATION
from keras_bert_flow.results.stages.corpus import CORPUS
from keras_bert_flow.results.stages.distillation import DISTILLATION
from keras_bert_flow.results.stages.evaluation import EVALUATION
from keras_bert_flow.results.stages.finetuning import FINETUNING
from keras_bert_flow.results.stages.pretraining import PRETRAINING
from keras_bert_flow.results.stages.records import RECORDS
from keras_bert_flow.results.stages.vocabulary import VOCABULARY

IN_ORDER = (CORPUS, VOCABULARY, RECORDS, PRETRAINING, DISTILLATION, AUGMENTATION, FINETUNING, EVALUATION)
STAGES = {stage.name: stage for stage in IN_ORDER}
