#!/usr/bin/env bash
# Compares the SGLang adapter with SGLang's real class, in an environment of its own (.venv-sglang, about 3 GB, made once), and
# runs the example of both sides of a deployment.
#
#     tools/test-sglang.sh                    everything
#     tools/test-sglang.sh --only-setup       make the environment, and no more
#     tools/test-sglang.sh -k double_free     these tests alone; arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-sglang
python=${PYTHON:-python3}

# What the modules of the disaggregation code import, on a machine without GPUs; in the last line, what the servers of
# tools/test-sglang-pair.sh do besides, which shares this environment.
needed=(
  aiohttp apache-tvm-ffi compressed-tensors dill einops fastapi gguf ipython msgspec numpy openai orjson packaging
  partial-json-parser pillow psutil pybase64 pydantic pyzmq requests sentencepiece setproctitle starlette torch tqdm
  transformers triton uvicorn uvloop xgrammar
  interegular jsonschema llguidance openai-harmony python-multipart soundfile tiktoken
)

made_of=$(cat pyproject.toml constraints.txt constraints-sglang.txt tools/test-sglang.sh | sha256sum)
native=$(cat tools/hatch_build.py service/pd_handoff_server/parser/*.[ch] | sha256sum)
install() {
  "$venv/bin/python" -m pip install -qq --upgrade 'pip>=25.1'
  "$venv/bin/python" -m pip install -qq -c constraints.txt -c constraints-sglang.txt \
    -e '.[server]' pytest pytest-timeout hypothesis "${needed[@]}"
  "$venv/bin/python" -m pip install -qq --no-deps -c constraints-sglang.txt sglang mooncake-transfer-engine-non-cuda
}

if [[ "$(cat "$venv/.complete" 2>/dev/null)" != "$made_of" ]]; then
  echo "Setting up $venv, about 3 GB; this takes a few minutes ..."
  [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
  install
  if ! "$venv/bin/python" tests/sglang/pins.py; then
    echo "Setting up $venv anew, without what was left of a former one ..."
    "$python" -m venv --clear "$venv"
    install
    "$venv/bin/python" tests/sglang/pins.py
  fi
  echo "$native" >"$venv/.native"
  echo "$made_of" >"$venv/.complete"
fi
if [[ "$(cat "$venv/.native" 2>/dev/null)" != "$native" ]]; then
  "$venv/bin/python" -m pip install -qq --no-deps -e .
  echo "$native" >"$venv/.native"
fi
if [[ "${1:-}" == --only-setup ]]; then exit 0; fi

"$venv/bin/python" -m pytest tests/sglang "$@"
if (($# == 0)); then "$venv/bin/python" -m examples.sglang; fi
