#!/usr/bin/env bash
# Installs what the benchmarks compare the store with: servers by apt, where this may be done, Python clients into
# .venv-peers, and a gRPC C++ server, built from Debian's gRPC into build/peers. The benchmarks do without whatever is
# missing and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(redis-server nghttp2-client etcd-server libibverbs1 g++ pkg-config libgrpc++-dev)
if [[ $(id -u) == 0 ]]; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  for package in "${packages[@]}"; do
    # No server may start by itself: the benchmarks start their own, on loopback.
    RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "$package" >/dev/null || echo "not installed: $package" >&2
  done
else
  echo "not root: install these yourself if they are missing: ${packages[*]}" >&2
fi

mkdir -p build/peers
rm -f build/peers/grpc-cpp-echo
if pkg-config --exists grpc++ && read -ra flags <<<"$(pkg-config --cflags --libs grpc++)" &&
  g++ -std=c++17 -O2 -Wall -Wextra bench/native/echo.cc -o build/peers/grpc-cpp-echo "${flags[@]}"; then
  echo "gRPC C++ $(build/peers/grpc-cpp-echo --version)"
else
  echo "not built: the gRPC C++ server (needs g++, pkg-config, libgrpc++-dev)" >&2
fi

[[ -x .venv-peers/bin/python ]] || python3 -m venv .venv-peers
.venv-peers/bin/python -m pip install -qq 'redis==6.4.0' 'hiredis==3.2.1'
# Some hundred megabytes, and only for some machines.
.venv-peers/bin/python -m pip install -qq 'mooncake-transfer-engine-non-cuda==0.3.13' numpy ||
  echo "not installed: mooncake-transfer-engine-non-cuda" >&2
.venv-peers/bin/python -m pip list 2>/dev/null | grep -iE '^(redis|hiredis|mooncake)' || true
