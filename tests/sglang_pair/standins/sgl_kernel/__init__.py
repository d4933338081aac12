"""Stands in for the CPU build of sgl-kernel, which no package registry has. On an x86 CPU without AMX SGLang's layers
use torch by themselves; the one kernel that it calls without such a way out is here."""

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    """Writes each request's new cache locations to its row, one request after the other."""
    at = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start].to(req_to_token.dtype)
        at += end - start


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_, **__):
        raise NotImplementedError(f"sgl_kernel.{name} is not in the stand-in")

    absent.__name__ = name
    return absent
