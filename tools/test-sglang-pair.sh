#!/usr/bin/env bash
# A real SGLang prefill/decode pair and an undivided SGLang, on CPUs, with Mooncake over TCP and a store: tests/sglang_pair.
#
#     tools/test-sglang-pair.sh                    the short form: a few minutes, most of which the servers take to start
#     tools/test-sglang-pair.sh --whole            everything, about half an hour
#     tools/test-sglang-pair.sh -k crossed         these tests alone; arguments go to pytest
#
# The environment is that of tools/test-sglang.sh, and beside it .venv-sglang/kit: three libraries that Mooncake loads,
# unpacked from Debian's packages (apt-get has to reach them), and a random model. SGLANG_VERSION=0.5.21 takes that release
# in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
version=${SGLANG_VERSION:-}

tools/test-sglang.sh --only-setup
venv=.venv-sglang
if [[ -n $version ]]; then
  venv=.venv-sglang-$version
  if [[ ! -f $venv/.complete ]]; then
    "$python" -m venv --clear "$venv"
    .venv-sglang/bin/python -m pip freeze --exclude-editable --exclude sglang >"$venv/packages"
    "$venv/bin/python" -m pip install -qq --upgrade 'pip>=25.1'
    "$venv/bin/python" -m pip install -qq --no-deps -r "$venv/packages" "sglang==$version"
    "$venv/bin/python" -m pip install -qq --no-deps -e .
    touch "$venv/.complete"
  fi
fi

kit=$PWD/.venv-sglang/kit
made_of=$(cat tests/sglang_pair/model.py tools/test-sglang-pair.sh | sha256sum)
if [[ "$(cat "$kit/.complete" 2>/dev/null)" != "$made_of" ]]; then
  rm -rf "$kit" && mkdir -p "$kit/deb"
  packages=(libibverbs1 libnl-3-200 libnl-route-3-200)
  (cd "$kit/deb" && { apt-get download -qq "${packages[@]}" 2>/dev/null || { apt-get update -qq && apt-get download -qq "${packages[@]}"; }; })
  for file in "$kit"/deb/*.deb; do dpkg -x "$file" "$kit/deb/root"; done
  "$venv/bin/python" -W ignore tests/sglang_pair/model.py "$kit/model"
  echo "$made_of" >"$kit/.complete"
fi

arguments=("$@")
if ((${#arguments[@]} == 0)); then arguments=(-m 'not whole'); fi
if [[ ${arguments[0]} == --whole ]]; then arguments=("${arguments[@]:1}"); fi

# Mooncake and torch listen on all addresses of a machine, so all of it runs in a network that has loopback alone.
own=(unshare --net)
if ((EUID != 0)); then own+=(--map-root-user); fi
PD_TEST_KIT=$kit exec "${own[@]}" bash -c 'ip link set lo up && exec "$@"' pair \
  "$venv/bin/python" -m pytest tests/sglang_pair -p no:cacheprovider "${arguments[@]}"
