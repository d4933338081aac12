#!/usr/bin/env bash
# Runs examples/litellm_hook.py in a real LiteLLM proxy, in an environment of its own (.venv-litellm, made once).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-litellm
python=${PYTHON:-python3}
made_of=$(cat pyproject.toml constraints.txt tools/test-litellm.sh | sha256sum)
if [[ "$(cat "$venv/.complete" 2>/dev/null)" != "$made_of" ]]; then
  echo "Setting up $venv, about 700 MB; this takes a few minutes ..."
  [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install -qq -c constraints.txt 'litellm[proxy]==1.108.7' -e .
  echo "$made_of" >"$venv/.complete"
fi
exec .venv/bin/python -m tests.gateway.litellm_proxy "$PWD/$venv/bin/litellm" "$@"
