#!/usr/bin/env bash
# Fail when the committed generated code is not what protos/ generate. Usage: tools/check-gen.sh PYTHON
set -euo pipefail
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
mkdir -p "$fresh/pd_handoff/v1"
tools/gen.sh "$1" "$fresh"
if ! diff -r --exclude=__init__.py --exclude=__pycache__ clients/python/pd_handoff/v1 "$fresh/pd_handoff/v1"; then
  echo "clients/python/pd_handoff/v1 is out of date: run 'make gen' and commit what it changes" >&2
  exit 1
fi
echo "generated code is up to date"
