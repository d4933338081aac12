"""A random Llama of two layers with a byte-level tokenizer of 512 tokens, small enough for a CPU.

python tests/sglang_pair/model.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

VOCABULARY = 512


def make(folder: Path) -> None:
    """Writes the model and its tokenizer to `folder`; the same each time."""
    import torch  # noqa: PLC0415  # this file is also read where neither is installed
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: PLC0415

    torch.manual_seed(0)
    names = ["<s>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<x{number}>" for number in range(len(names), VOCABULARY)]
    tokenizer: Any = Tokenizer(
        models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[], unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    fast.save_pretrained(folder)
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=1,
            tie_word_embeddings=False,
            dtype="float32",
            initializer_range=0.4,  # wide enough that the greatest logit stands apart
        )
    )
    model.float().eval().save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
