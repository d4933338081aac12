"""What a later SGLang has changed about the class that this package stands in for.

The package was written against SGLang 0.5.23. `differences()` reads the installed one and says, a line each, what is no
longer so; the tests fail with these lines, and an engine may log them when it starts.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from typing import Any

from pd_handoff.engines.sglang.bridge import ROW
from pd_handoff.engines.sglang.row import RowShape, blank_row

VERSION = "0.5.23"
PARAMETERS = (
    *("size", "hidden_size", "hidden_states_dtype", "max_sampling_mask_tokens", "max_top_logprobs_num"),
    *("custom_mem_pool", "output_dsa_topk_indices_dim", "kv_checksum_enabled"),
)
METHODS = {
    "set_kv_checksum": ("req", "digest", "signature"),
    "get_kv_checksum": ("idx",),
    "clear_slot": ("idx",),
    "get_buf_infos": (),
    "get_buf": ("idx",),
    "set_buf": ("req",),
}
ALLOCATOR = {"available_size": (), "alloc": (), "free": ("free_index",)}
READS = frozenset(
    {
        "bootstrap_room",
        "cached_tokens",
        "cached_tokens_device",
        "cached_tokens_host",
        "cached_tokens_storage",
        "get_mm_token_counts",
        "hidden_states_tensor",
        "logprob",
        "logprob.output_token_logprobs_idx",
        "logprob.output_token_logprobs_val",
        "logprob.output_top_logprobs_idx",
        "logprob.output_top_logprobs_val",
        "metadata_buffer_index",
        "output_dsa_topk_indices",
        "output_ids",
        "output_topk_index",
        "output_topk_p",
        "output_topk_p.size",
        "return_logprob",
        "return_sampling_mask",
        "sampling_mask_rows",
        "sampling_mask_rows.view",
    }
)
_ALIASES = 8  # names for a part of a part of a request
POLLS = {"Failed": 0, "Bootstrapping": 1, "WaitingForInput": 2, "Transferring": 3, "Success": 4}


def differences(module: Any = None) -> list[str]:
    """What of `sglang.srt.disaggregation.utils` (or `module` in its place) is not as in 0.5.23, a sentence each. Raises
    ImportError without sglang."""
    if module is None:
        module = importlib.import_module("sglang.srt.disaggregation.utils")
    found: list[str] = []
    buffers = getattr(module, "MetadataBuffers", None)
    if buffers is None:
        return [f"{module.__name__} has no class MetadataBuffers"]
    _compare(found, "MetadataBuffers()", PARAMETERS, _parameters(buffers.__init__))
    _methods(found, buffers, METHODS)
    allocator = getattr(module, "ReqToMetadataIdxAllocator", None)
    if allocator is None:
        found.append(f"{module.__name__} has no class ReqToMetadataIdxAllocator")
    else:
        _methods(found, allocator, ALLOCATOR)
    if hasattr(buffers, "set_buf"):
        read = _reads(buffers.set_buf)
        found += [f"set_buf reads req.{name}, which is not handed over" for name in sorted(read - READS)]
        found += [f"set_buf no longer reads req.{name}" for name in sorted(READS - read)]
    if hasattr(buffers, "get_buf"):
        given = _tuple(buffers.get_buf)
        _compare(found, "get_buf's tuple", ROW, given)
        if given == ROW:
            _rows(found, buffers)
    if hasattr(module, "prepare_abort"):
        _compare(
            found, "prepare_abort()", ("req", "error_message", "status_code"), _parameters(module.prepare_abort, 0)
        )
    else:
        found.append(f"{module.__name__} has no function prepare_abort")
    polls = getattr(module, "KVPoll", None)
    for name, value in POLLS.items():
        actual = getattr(polls, name, None)
        if actual is None or int(actual) != value:
            found.append(f"KVPoll.{name} is {actual}, was {value}")
    return found


def _methods(found: list[str], owner: type, expected: dict[str, tuple[str, ...]]) -> None:
    for name, parameters in expected.items():
        method = getattr(owner, name, None)
        if method is None:
            found.append(f"{owner.__name__} has no method {name}")
        else:
            _compare(found, f"{owner.__name__}.{name}()", parameters, _parameters(method))
    public = {name for name, value in vars(owner).items() if callable(value) and not name.startswith("_")}
    found += [f"{owner.__name__} has a new method {name}" for name in sorted(public - set(expected))]


def _compare(found: list[str], what: str, expected: tuple[str, ...], actual: tuple[str, ...]) -> None:
    if expected == actual:
        return
    gone = [name for name in expected if name not in actual]
    new = [name for name in actual if name not in expected]
    parts = [f"lost {', '.join(gone)}"] * bool(gone) + [f"gained {', '.join(new)}"] * bool(new)
    found.append(f"{what} {' and '.join(parts) or 'has another order'}: {', '.join(actual) or 'nothing'}")


def _parameters(function: Any, skip: int = 1) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)[skip:]


def _body(function: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def _rows(found: list[str], buffers: Any) -> None:
    """Compares the dtypes and sizes of a small buffer's row with ours."""
    torch: Any = importlib.import_module("torch")
    sizes = {
        "hidden_size": 48,
        "hidden_states_dtype": torch.bfloat16,
        "max_sampling_mask_tokens": 64,
        "max_top_logprobs_num": 20,
        "output_dsa_topk_indices_dim": 24,
    }
    try:
        theirs = buffers(1, **sizes).get_buf(0)
    except Exception as error:  # whatever a class to come may raise
        found.append(f"MetadataBuffers cannot be constructed to compare its rows: {type(error).__name__}: {error}")
        return
    # Masks are there or not by a setting of SGLang's.
    ours = blank_row(
        0, RowShape(**sizes, sampling_mask=theirs[ROW.index("output_token_sampling_mask_idx")] is not None)
    )
    for name, was, now in zip(ROW, map(_form, ours), map(_form, theirs), strict=True):
        if was != now:
            found.append(f"get_buf's {name} is {now}, was {was}")


def _form(row: Any) -> str:
    return "None" if row is None else f"{str(row.dtype).rpartition('.')[2]} of {list(row.shape)}"


def _reads(function: Any) -> set[str]:
    """Dotted names read off the first parameter: `req.a`, `req.logprob.b`, also by way of another name for a part of it
    (`part = req.logprob`) and of getattr or hasattr with a name written out."""
    body = _body(function)
    names = {_parameters(function)[0]: ""}
    for _ in range(_ALIASES):
        known = len(names)
        for node in ast.walk(body):
            bound: list[tuple[ast.expr, ast.expr | None]] = []
            if isinstance(node, ast.Assign):
                bound = [(target, node.value) for target in node.targets]
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
                bound = [(node.target, node.value)]
            for target, value in bound:
                path = _path(value, names)
                if path is not None and isinstance(target, ast.Name):
                    names.setdefault(target.id, path)
        if len(names) == known:
            break
    return {path for node in ast.walk(body) if (path := _path(node, names)) and not isinstance(node, ast.Name)}


def _path(node: ast.AST | None, names: dict[str, str]) -> str | None:
    """What of the request an expression is, as a dotted name; "" is the request itself, None is something else."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner, attribute = _path(node.value, names), node.attr
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
    ):
        owner, attribute = _path(node.args[0], names), str(node.args[1].value)
    else:
        return None
    return None if owner is None else f"{owner}.{attribute}".lstrip(".")


def _tuple(function: Any) -> tuple[str, ...]:
    """The attribute of self behind each element of the tuple that is returned."""
    for node in ast.walk(_body(function)):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            return tuple(_attribute(element) for element in node.value.elts)
    return ()


def _attribute(element: ast.AST) -> str:
    body = element.body if isinstance(element, ast.IfExp) else element
    for node in ast.walk(body):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return node.attr
    return ast.unparse(element)
