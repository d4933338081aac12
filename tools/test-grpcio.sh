#!/usr/bin/env bash
# Runs a short form of the contract suite on other releases of gRPC: what the transports themselves do, over both of
# them. Each release has an environment of its own (.venv-grpcio-*, some 30 MB), which takes all else from .venv.
#
#     tools/test-grpcio.sh                 the oldest supported release, and one between it and the newest
#     tools/test-grpcio.sh -k session      these tests alone; arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."

# grpcio (and its companions), protobuf, googleapis-common-protos
releases=("1.75.1 6.31.1 1.70.0" "1.80.0 6.33.6 1.72.0")
[[ -x .venv/bin/python ]] || { echo "run make setup first" >&2; exit 1; }
base=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
suite=(
  tests/contract/transport tests/contract/test_call_get.py tests/contract/test_session.py tests/contract/test_waiting.py
  tests/contract/test_drain.py tests/contract/test_health.py
)
long=(--deselect tests/contract/test_waiting.py::test_put_and_capabilities_answer_while_2000_gets_wait)

for release in "${releases[@]}"; do
  read -r grpcio protobuf common <<<"$release"
  venv=.venv-grpcio-$grpcio
  if [[ "$(cat "$venv/.complete" 2>/dev/null)" != "$release" ]]; then
    .venv/bin/python -m venv "$venv"
    "$venv/bin/python" -m pip install -qq --no-deps "grpcio==$grpcio" "grpcio-health-checking==$grpcio" \
      "grpcio-reflection==$grpcio" "grpcio-status==$grpcio" "protobuf==$protobuf" "googleapis-common-protos==$common"
    own=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "import site; site.addsitedir('$base')" >"$own/zz_rest.pth"
    printf '#!%s\nimport sys\nfrom pd_handoff.cli import main\nsys.exit(main())\n' "$PWD/$venv/bin/python" \
      >"$venv/bin/pd-handoff"
    chmod +x "$venv/bin/pd-handoff"
    echo "$release" >"$venv/.complete"
  fi
  echo "grpcio $grpcio:"
  "$venv/bin/python" -m pytest -q -p no:cacheprovider "${suite[@]}" "${long[@]}" "$@"
done
