#!/usr/bin/env bash
# Renews src/gen from the protos. Usage: gen.sh PYTHON, where PYTHON has grpcio-tools.
set -euo pipefail
cd "$(dirname "$0")"
root=../..
rm -rf src/gen
mkdir -p src/gen
"$1" -m grpc_tools.protoc -I "$root/protos" -I "$root/third_party" \
  --plugin=protoc-gen-ts_proto=node_modules/.bin/protoc-gen-ts_proto --ts_proto_out=src/gen \
  --ts_proto_opt=env=node,esModuleInterop=true,forceLong=bigint,outputServices=grpc-js,useDate=false \
  --ts_proto_opt=outputJsonMethods=false,comments=true \
  "$root"/protos/pd_handoff/v1/*.proto "$root"/third_party/google/rpc/*.proto
