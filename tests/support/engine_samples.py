"""What engines hand over, field by field as their sources have it. Values are made up."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

_FIELD = descriptor_pb2.FieldDescriptorProto
OPAQUE = base64.b64encode(bytes(range(256)) * 3).decode()

# tensorrt_llm/serve/openai_protocol.py, DisaggregatedParams of a context server's answer. None is how it leaves out.
TRTLLM: dict[str, dict[str, Any]] = {
    "full": {
        "request_type": "context_only",
        "first_gen_tokens": [9707],
        "first_gen_log_probs": [
            [
                {"token_id": 9707, "logprob": -0.25, "rank": 1},
                {"token_id": 0, "logprob": -1.5, "rank": 2},
                {"token_id": 151643, "logprob": -17.75, "rank": 151936},
            ]
        ],
        "first_gen_logits": None,
        "ctx_request_id": (1 << 63) + 1,
        "encoded_opaque_state": OPAQUE,
        "draft_tokens": [11, 0, 358],
        "disagg_request_id": (1 << 64) - 1,
        "ctx_dp_rank": 0,
        "ctx_info_endpoint": "tcp://10.0.0.7:41231",
        "schedule_style": 1,
        "ctx_usage": {
            "prompt_tokens": 279,
            "total_tokens": 280,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 256},
        },
        "return_prompt_token_ids_b64": False,
        "resolved_thinking": True,
    },
    "logprob alone": {
        "request_type": "context_only",
        "first_gen_tokens": [0],
        "first_gen_log_probs": [-0.5],
        "ctx_request_id": 7,
        "encoded_opaque_state": OPAQUE,
        "draft_tokens": [],
        "ctx_usage": {"prompt_tokens": 0, "total_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": None},
    },
    "without ranks, and a token that is no candidate": {
        "request_type": "context_only",
        "first_gen_tokens": [5],
        "first_gen_log_probs": [[{"token_id": 6, "logprob": float("-inf"), "rank": None}]],
        "ctx_request_id": 0,
    },
    "no candidate at all": {"first_gen_tokens": [5], "first_gen_log_probs": [[]]},
    "generation first": {
        "request_type": "generation_only",
        "first_gen_tokens": None,
        "first_gen_log_probs": None,
        "first_gen_logits": None,
        "ctx_request_id": None,
        "encoded_opaque_state": None,
        "draft_tokens": None,
        "disagg_request_id": 123456789012345,
        "ctx_dp_rank": 3,
        "ctx_info_endpoint": "tcp://[fd00::7]:41231",
        "schedule_style": 1,
        "ctx_usage": None,
        "resolved_thinking": None,
    },
    "empty lists": {"request_type": "context_only", "first_gen_tokens": [], "first_gen_log_probs": []},
    "a later version": {"first_gen_tokens": [1], "new_field": {"a": [1, 2.5, None, "ü"]}, "ctx_usage": {"new": 1}},
}

# lib/llm/src/protocols/common/preprocessor.rs, PrefillResult; the engines fill disaggregated_params. Engine -> samples.
DYNAMO: dict[str, tuple[str, dict[str, Any], dict[str, str] | None]] = {
    "vllm": (
        "vllm",
        {
            "disaggregated_params": {
                "kv_transfer_params": {
                    "do_remote_prefill": True,
                    "do_remote_decode": False,
                    "remote_block_ids": [[4, 5, 6]],
                    "remote_engine_id": "0d0b3cf2-3d44-4d0c-8f43-6c3e4f6f8c1d",
                    "remote_request_id": "cmpl-1-0",
                    "remote_host": "10.0.0.7",
                    "remote_port": 5600,
                    "tp_size": 1,
                },
                "worker_id": {"prefill_worker_id": (1 << 64) - 1, "prefill_dp_rank": 0},
            },
            "prompt_tokens_details": {"audio_tokens": None, "cached_tokens": 256},
        },
        {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"},
    ),
    "trtllm": (
        "trtllm",
        {
            "disaggregated_params": {
                "request_type": "context_only",
                "first_gen_tokens": [9707],
                "first_gen_log_probs": [[{"token_id": 9707, "logprob": -0.25, "rank": 1}]],
                "ctx_request_id": 4294967297,
                "opaque_state": OPAQUE,
                "draft_tokens": None,
                "_epd_metadata": {"_epd_processed_prompt": "a prompt"},
            }
        },
        None,
    ),
    "sglang": (
        "sglang",
        {
            "disaggregated_params": {
                "bootstrap_host": "10.0.0.7",
                "bootstrap_port": 8998,
                "bootstrap_room": (1 << 63) - 1,
            },
            "prompt_tokens_details": {"audio_tokens": 17, "cached_tokens": 0},
        },
        None,
    ),
    "details that are empty": ("mocker", {"disaggregated_params": None, "prompt_tokens_details": {}}, None),
    "no details": ("mocker", {"disaggregated_params": [1, "two"], "prompt_tokens_details": None}, None),
}

# lmdeploy/pytorch/disagg/conn/protocol.py, MigrationRequest.model_dump(mode="json"). Protocol: TCP 1, RDMA 2, NVLINK 3.
LMDEPLOY: dict[str, dict[str, Any]] = {
    "rdma": {
        "protocol": 2,
        "remote_engine_id": "http://10.0.0.7:23333",
        "remote_session_id": 123456789,
        "remote_token_id": 9707,
        "remote_block_ids": list(range(40)),
        "is_dummy_prefill": False,
    },
    "token 0, as an older proxy sends it": {
        "protocol": 3,
        "remote_engine_id": "http://10.0.0.7:23333",
        "remote_session_id": 0,
        "remote_token_id": 0,
        "remote_block_ids": [0],
    },
    "a dummy prefill": {
        "protocol": 2,
        "remote_engine_id": "http://10.0.0.7:23333",
        "remote_session_id": 0,
        "remote_token_id": 0,
        "remote_block_ids": [],
        "is_dummy_prefill": True,
    },
}


def _message(file: descriptor_pb2.FileDescriptorProto, name: str, *fields: tuple[str, int, int, str]) -> None:
    message = file.message_type.add(name=name)
    for number, (field, label, kind, type_name) in enumerate(fields, 1):
        message.field.add(name=field, number=number, label=label, type=kind, type_name=type_name or None)


def _openengine() -> dict[str, Any]:
    """proto/openengine/v1/kv.proto, as its generated code would be; in a pool of its own."""
    one, many = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
    text, number, message = _FIELD.TYPE_STRING, _FIELD.TYPE_UINT32, _FIELD.TYPE_MESSAGE
    file = descriptor_pb2.FileDescriptorProto(name="openengine/v1/kv.proto", package="openengine.v1", syntax="proto3")
    file.dependency.append("google/protobuf/struct.proto")
    _message(file, "KvEndpoint", ("host", one, text, ""), ("port", one, number, ""), ("protocol", one, text, ""))
    _message(
        file,
        "KvSessionRef",
        ("session_id", one, text, ""),
        ("transfer_backend", one, text, ""),
        ("endpoints", many, message, ".openengine.v1.KvEndpoint"),
        ("dp_rank", one, number, ""),
        ("attributes_struct", one, message, ".google.protobuf.Struct"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClassesForFiles(["openengine/v1/kv.proto"], pool)


_CLASSES = _openengine()
KvSessionRef: Any = _CLASSES["openengine.v1.KvSessionRef"]
KvEndpoint: Any = _CLASSES["openengine.v1.KvEndpoint"]


def session(**attributes: Any) -> Any:
    """What TensorRT-LLM's servicer of OpenEngine puts into PrefillReady, with further attributes."""
    made = KvSessionRef(session_id=str((1 << 63) + 1), transfer_backend="tensorrt_llm", dp_rank=3)
    made.endpoints.add(host="10.0.0.7", port=41231, protocol="nixl")
    made.endpoints.add(host="fd00::7", port=41232, protocol="ucx")
    made.attributes_struct.update(
        {
            "ctx_info_endpoint": "tcp://10.0.0.7:41231",
            "opaque_state": OPAQUE,
            "first_gen_tokens": [9707],
            "draft_tokens": [11, 0],
            "disagg_request_id": "9223372036854775809",
            "ctx_dp_rank": 0,
            "schedule_style": 0,
            "ctx_usage": {"prompt_tokens": 279, "total_tokens": 280},
            "first_gen_log_probs": [[[9707, -0.25, 1], [0, -1.5, None]]],
            **attributes,
        }
    )
    return made
