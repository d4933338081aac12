"""Makes a model for the pair: a Llama of random weights whose tokens are bytes.

Stands in for a real model, which cannot be downloaded where the tests run. A prompt of n bytes has n tokens, so a test
knows how many a server must have fetched.

    python model.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>"]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def make(directory: Path) -> None:
    """Writes model and tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=TEMPLATE
    ).save_pretrained(directory)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        initializer_range=0.2,  # so that logprobs are far enough apart
        dtype="float32",
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(directory)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
