"""Train tokenizers as other families have them."""

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "The owner of the shop closed it early, and nobody knew why.",
    "An early owner knew the shop; the other didn't.  It opened again in May 2019!",
    "Où est l'hôtel? In 北京, they said.",
]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ALBERT = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]


def make_byte_level():
    """As RoBERTa's: byte-level BPE, two separators."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=330, special_tokens=ROBERTA, initial_alphabet=alphabet)
    )
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return made


def make_modern():
    """As ModernBERT's: byte-level BPE of OLMo, with runs of spaces among its added tokens and a mask that eats them."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=["<|padding|>"], initial_alphabet=alphabet)
    made.train_from_iterator(TEXTS, trainer)
    made.add_tokens([tokenizers.AddedToken(" " * count, normalized=True) for count in range(8, 1, -1)])
    for name in ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"):
        made.add_special_tokens([tokenizers.AddedToken(name, lstrip=name == "[MASK]", normalized=False)])
    made.add_tokens([tokenizers.AddedToken(f"[unused{number}]") for number in range(3)])
    special = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", special)
    return made


def make_unigram():
    """As ALBERT's: lower case without accents, Unigram, one separator."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=ALBERT, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def make_byte_fallback():
    """As DeBERTa-v3's: NFC, Unigram with pieces for bytes, the mask after all of them."""
    content = json.loads(make_unigram().to_str())
    pieces = [["[PAD]", 0.0], ["[CLS]", 0.0], ["[SEP]", 0.0], ["[UNK]", 0.0]]
    pieces += [[piece, score] for piece, score in content["model"]["vocab"] if piece not in ALBERT]
    pieces += [[f"<0x{byte:02X}>", -50.0] for byte in range(256)]
    model = models.Unigram([(piece, score) for piece, score in pieces], unk_id=3, byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.normalizer, made.pre_tokenizer = normalizers.NFC(), pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    made.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])
    made.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 1), ("[SEP]", 2)]
    )
    return made
