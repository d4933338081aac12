#!/usr/bin/env bash
# Generates, compiles and runs examples/languages against a real store, from what `pd-handoff protos` writes alone.
# Usage: tools/test-languages.sh [go] [cpp] [java] [rust]; all of them by default. Of Rust only the messages: Debian has no tonic. The compilers are the machine's own. Debian:
#   go    golang-go golang-google-grpc-dev golang-google-genproto-dev golang-github-golang-protobuf-1-5-dev
#         protoc-gen-go-1-5 protoc-gen-go-grpc
#   cpp   g++ libgrpc++-dev protobuf-compiler-grpc
#   java  default-jdk-headless libgrpc-java libnetty-java libperfmark-java libprotobuf-java protobuf-compiler-grpc-java-plugin
#   rust  cargo librust-prost-build-dev librust-prost-dev librust-prost-types-dev (the messages alone)
# and protobuf-compiler.
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

"$root/.venv/bin/pd-handoff" protos --out "$work/protos" >/dev/null
"$root/.venv/bin/pd-handoff" serve --listen 127.0.0.1:0 --slots 64 --log-format json 2>"$work/log" &
store=$!
timeout 100 grep -q -m 1 '"event": *"serving"' <(tail -n +1 -F --pid "$store" "$work/log" 2>/dev/null) ||
  { cat "$work/log" >&2; exit 1; }
target=$(grep -m 1 '"serving"' "$work/log" | grep -oE '127\.0\.0\.1:[0-9]+' | head -1)

generate() { # the flags of protoc beside -I
  (cd "$work/protos" && protoc -I . "$@" pd_handoff/v1/*.proto)
}

check() { # name, version, output
  [[ $3 == $'42\nHANDOFF_NOT_FOUND' ]] || { echo "$1 printed: $3" >&2; exit 1; }
  echo "$1: ran ($2)"
}

run_go() {
  local here=$work/go/src/example
  mkdir -p "$here/gen"
  generate --go_out="$here/gen" --go_opt=paths=source_relative --go-grpc_out="$here/gen" --go-grpc_opt=paths=source_relative
  cp examples/languages/go/main.go "$here"
  (cd "$here" && GO111MODULE=off GOPATH=$work/go:/usr/share/gocode GOCACHE=$work/cache go build -o "$work/example-go" .)
  check go "$(go version | cut -d' ' -f3), grpc-go $(version golang-google-grpc-dev)" "$("$work/example-go" "$target")"
}

run_cpp() {
  local here=$work/cpp
  mkdir -p "$here"
  generate --cpp_out="$here" --grpc_out="$here" --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)"
  (cd "$work/protos" && protoc -I . --cpp_out="$here" google/rpc/*.proto)
  # shellcheck disable=SC2046 # words of pkg-config
  g++ -std=c++17 -Wall -I "$here" examples/languages/cpp/main.cc \
    "$here"/pd_handoff/v1/{record,metadata_store}.pb.cc "$here/pd_handoff/v1/metadata_store.grpc.pb.cc" "$here"/google/rpc/*.pb.cc \
    $(pkg-config --cflags --libs grpc++ protobuf) -o "$work/example-cpp"
  check cpp "g++ $(g++ -dumpfullversion), gRPC $(version libgrpc++-dev)" "$("$work/example-cpp" "$target")"
}

run_java() {
  local here=$work/java jars
  mkdir -p "$here/classes"
  generate --java_out="$here" --grpc_out="$here" --plugin=protoc-gen-grpc="$(command -v grpc_java_plugin)"
  (cd "$work/protos" && protoc -I . --java_out="$here" google/rpc/*.proto)
  jars=$(find /usr/share/java -maxdepth 1 \( -name 'grpc-*' -o -name 'netty-*' -o -name 'opencensus-*' -o -name protobuf.jar \
    -o -name guava.jar -o -name 'perfmark*' -o -name jsr305.jar -o -name 'geronimo-annotation*' \) \
    -name '*.jar' | tr '\n' ':')
  find "$here" -name '*.java' >"$here/sources"
  javac -nowarn -cp "$jars" -d "$here/classes" "@$here/sources" examples/languages/java/Example.java 2>"$here/javac" ||
    { cat "$here/javac" >&2; exit 1; }
  check java "javac $(javac -version 2>&1 | cut -d' ' -f2), grpc-java $(version libgrpc-java)" \
    "$(java -cp "$here/classes:$jars" Example "$target" 2>"$here/java" || cat "$here/java")"
}

run_rust() { # prost's messages, which tonic wraps: what the example sets is there, and crosses
  local here=$work/rust
  mkdir -p "$here/src" "$here/.cargo"
  cp -r "$work/protos" "$here/protos"
  printf '[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "/usr/share/cargo/registry"\n' >"$here/.cargo/config.toml"
  cat >"$here/Cargo.toml" <<'TOML'
[package]
name = "messages"
version = "0.1.0"
edition = "2021"
[dependencies]
prost = "*"
prost-types = "*"
[build-dependencies]
prost-build = "*"
TOML
  cat >"$here/build.rs" <<'RUST'
fn main() {
    let files = ["protos/pd_handoff/v1/metadata_store.proto", "protos/google/rpc/error_details.proto"];
    prost_build::compile_protos(&files, &["protos"]).unwrap();
}
RUST
  {
    cat <<'RUST'
use prost::Message;
pub mod google { pub mod rpc { include!(concat!(env!("OUT_DIR"), "/google.rpc.rs")); } }
pub mod pd_handoff { pub mod v1 { include!(concat!(env!("OUT_DIR"), "/pd_handoff.v1.rs")); } }
use pd_handoff::v1 as pd;
RUST
    sed -n '/^fn key/,/^}/p' examples/languages/rust/src/main.rs
    cat <<'RUST'
fn main() {
    let room = u64::MAX;
RUST
    sed -n '/let token = /p' examples/languages/rust/src/main.rs
    echo '    let put ='
    sed -n '/^        .put(/,/^        })/p' examples/languages/rust/src/main.rs | sed 's/^        .put(//; s/^        })/        };/'
    cat <<'RUST'
    let back = pd::PutRequest::decode(put.encode_to_vec().as_slice()).unwrap();
    assert_eq!(back, put);
    assert_eq!(back.key.unwrap().room, Some(room));
    println!("{}", back.record.unwrap().tokens[0].token_id.unwrap());
    println!("{}", google::rpc::ErrorInfo { reason: "HANDOFF_NOT_FOUND".into(), ..Default::default() }.reason);
}
RUST
  } >"$here/src/main.rs"
  check "rust, messages alone" "$(cargo --version | cut -d' ' -f1-2), prost $(version librust-prost-dev)" \
    "$(cd "$here" && cargo run --quiet --offline 2>"$work/cargo" || cat "$work/cargo")"
}

version() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo unknown; }

languages=("$@")
((${#languages[@]})) || languages=(go cpp java rust)
for language in "${languages[@]}"; do "run_$language"; done
