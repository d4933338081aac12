"""A small real transformer with seeded weights: the same bits in every process, nothing downloaded.

`prefill` and `decode` are the two halves that a divided deployment runs. `undivided` is the reference: it leaves the
whole loop to `transformers` and shares nothing with the halves but the weights and the choice of top logprobs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from examples.demo.workload import CONTEXT

HIDDEN_SIZE = 256
"""Elements of one hidden state (float32)."""

_SEED = 20_261_130


@dataclass(frozen=True)
class Sampled:
    """One sampled token as the user sees it; floats are exact float32 values."""

    token_id: int
    logprob: float
    top_values: list[float]
    top_ids: list[int]


@dataclass(frozen=True)
class Prefilled:
    """What prefill leaves behind: a key and a value tensor a layer, the logits' hidden state, and the first token."""

    kv: list[tuple[torch.Tensor, torch.Tensor]]
    hidden_state: torch.Tensor
    first: Sampled


def tokenize(prompt: str) -> list[int]:
    """One token a byte of UTF-8."""
    return list(prompt.encode())


def sample(logits: torch.Tensor, top_logprobs: int) -> Sampled:
    """The likeliest token of one position's logits, with its logprob and the `top_logprobs` likeliest beside it."""
    logprobs = torch.log_softmax(logits, dim=-1)
    top = torch.topk(logprobs, top_logprobs)
    token_id = int(torch.argmax(logits))
    return Sampled(token_id, float(logprobs[token_id]), top.values.tolist(), top.indices.tolist())


class Model:
    """One process's copy of the model; counts the prefills it has computed."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(_SEED)
        self._config = LlamaConfig(
            vocab_size=512,
            hidden_size=HIDDEN_SIZE,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
            initializer_range=0.15,  # wide enough that random weights do not repeat one token
            attn_implementation="eager",
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        self._llama = LlamaForCausalLM(self._config).eval()
        self.prefills = 0

    def weights_digest(self) -> str:
        """Equal digests mean equal weights, bit for bit."""
        digest = hashlib.blake2b(digest_size=8)
        for name, weight in sorted(self._llama.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.numpy().tobytes())
        return digest.hexdigest()

    @torch.inference_mode()
    def prefill(self, prompt: list[int], top_logprobs: int) -> Prefilled:
        """Compute the prompt's KV cache and sample the first token."""
        self.prefills += 1
        cache = DynamicCache(config=self._config)
        out = self._llama(
            torch.tensor([prompt]), past_key_values=cache, use_cache=True, logits_to_keep=1, output_hidden_states=True
        )
        kv = [(layer.keys, layer.values) for layer in cache.layers]
        return Prefilled(kv, out.hidden_states[-1][0, -1], sample(out.logits[0, -1], top_logprobs))

    @torch.inference_mode()
    def decode(
        self, kv: list[tuple[torch.Tensor, torch.Tensor]], first: int, new_tokens: int, top_logprobs: int
    ) -> list[Sampled]:
        """Go on from a KV cache and its first token; returns the `new_tokens` after that one."""
        cache = DynamicCache(config=self._config)
        for layer, (keys, values) in enumerate(kv):
            cache.update(keys, values, layer)
        sampled: list[Sampled] = []
        token_id = first
        for _ in range(new_tokens):
            out = self._llama(torch.tensor([[token_id]]), past_key_values=cache, use_cache=True, logits_to_keep=1)
            sampled.append(sample(out.logits[0, -1], top_logprobs))
            token_id = sampled[-1].token_id
        return sampled

    @torch.inference_mode()
    def undivided(self, prompt: list[int], new_tokens: int, top_logprobs: int) -> tuple[torch.Tensor, list[Sampled]]:
        """The whole request by `transformers` itself; returns the first token's hidden state and all tokens."""
        out = self._llama.generate(
            torch.tensor([prompt]),
            max_new_tokens=new_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            output_hidden_states=True,
        )
        sampled = [sample(logits[0], top_logprobs) for logits in out.logits]
        if [s.token_id for s in sampled] != out.sequences[0, len(prompt) :].tolist():
            raise RuntimeError("transformers generated other tokens than the likeliest ones")
        return out.hidden_states[0][-1][0, -1], sampled
