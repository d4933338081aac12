"""The KV cache's own way from prefill to decode: a file, as RDMA would be on a cluster. Never through the store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

KvCache = list[tuple[torch.Tensor, torch.Tensor]]


def write(path: Path, kv: KvCache) -> None:
    """Write the cache; the file appears whole or not at all."""
    tensors = {}
    for layer, (keys, values) in enumerate(kv):
        tensors[f"{layer}.keys"] = keys.contiguous()
        tensors[f"{layer}.values"] = values.contiguous()
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.rename(path)


def read(path: Path) -> KvCache:
    """Read what `write` wrote. Raises OSError when it is not there."""
    tensors = load_file(path)
    # Copies, so that the tensors lie as aligned as those that torch made itself and kernels take the same path.
    return [
        (tensors[f"{layer}.keys"].clone(), tensors[f"{layer}.values"].clone()) for layer in range(len(tensors) // 2)
    ]


def checksum(kv: KvCache) -> tuple[int, int]:
    """A digest of the contents and one of the layout, 64 bits each: the record's `kv_checksum`."""
    contents, layout = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    for tensors in kv:
        for tensor in tensors:
            contents.update(tensor.contiguous().numpy().tobytes())
            layout.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    return int.from_bytes(contents.digest(), "little"), int.from_bytes(layout.digest(), "little")
