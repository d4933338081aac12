#!/usr/bin/env bash
# Renew everything that is generated from protos/: messages, stubs, their types, and the descriptor set.
# Usage: tools/gen.sh PYTHON OUT, where PYTHON has grpcio-tools and mypy-protobuf.
set -euo pipefail
python=$1 out=$2
bin=$(dirname "$python")
files=(protos/pd_handoff/v1/*.proto)
"$python" -m grpc_tools.protoc -I protos -I third_party \
  --plugin=protoc-gen-mypy="$bin/protoc-gen-mypy" --plugin=protoc-gen-mypy_grpc="$bin/protoc-gen-mypy_grpc" \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
  --descriptor_set_out="$out/pd_handoff/v1/pd_handoff.v1.binpb" --include_imports --include_source_info \
  "${files[@]}"
# Files without services get empty stubs; nobody imports them.
rm -f "$out"/pd_handoff/v1/{record,error_reason}_pb2_grpc.py{,i}
