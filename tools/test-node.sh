#!/usr/bin/env bash
# Builds the Node.js client, packs it, installs the pack into an empty project, and tests it there against a real store.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
store=
finish() {
  if [[ -n $store ]]; then kill "$store" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap finish EXIT

cd clients/node
npm ci --no-audit --no-fund --loglevel=error
cp -r src/gen "$work/gen"
./gen.sh "$root/.venv-gen/bin/python"
diff -r "$work/gen" src/gen || { echo "src/gen is not what protos/ generate: make gen-node" >&2; exit 1; }
npm pack --loglevel=error --pack-destination "$work"

mkdir "$work/project"
cd "$work/project"
echo '{"name": "project", "private": true, "type": "module"}' >package.json
npm install --no-audit --no-fund --loglevel=error "$work"/pd-handoff-*.tgz
unexpected=$(cd node_modules/pd-handoff && find . -type f ! -path './dist/*' ! -name package.json ! -name README.md)
[[ -z $unexpected ]] || { echo "the pack has files that are none of its own: $unexpected" >&2; exit 1; }
cp "$root/clients/node/test/client.test.mjs" .
sed -n '/^```js$/,/^```$/p' "$root/clients/node/README.md" | sed '/^```/d' | sed 's|"127.0.0.1:50071"|process.env.PD_HANDOFF_TARGET|' >readme.mjs

"$root/.venv/bin/pd-handoff" serve --listen "unix:$work/store" --slots 256 2>"$work/log" &
store=$!
timeout 100 grep -q -m 1 '"event": *"serving"' <(tail -n +1 -F --pid "$store" "$work/log" 2>/dev/null) ||
  { cat "$work/log" >&2; exit 1; }
export PD_HANDOFF_TARGET="unix:$work/store"
node --test client.test.mjs
printed=$(node readme.mjs)
[[ $printed == 42 ]] || { echo "README.md prints $printed" >&2; exit 1; }
