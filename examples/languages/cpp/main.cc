// One hand-off and one refusal, in C++. Usage: main TARGET
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "pd_handoff/v1/metadata_store.grpc.pb.h"

namespace pd = pd_handoff::v1;

// Why the store refused; empty when gRPC itself failed.
std::string ReasonOf(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details())) return "";
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

void Check(const grpc::Status& status) {
  if (status.ok()) return;
  std::cerr << ReasonOf(status) << ": " << status.error_message() << "\n";
  std::exit(1);
}

// A Get waits for up to max_wait; its deadline has to be longer.
void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
}

int main(int, char** argv) {
  // TLS: grpc::SslCredentials(...) instead.
  auto store = pd::MetadataStore::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  {
    grpc::ClientContext context;
    SetDeadline(context);
    pd::PutRequest request;
    request.mutable_key()->set_namespace_("cpp");
    request.mutable_key()->set_room(std::numeric_limits<std::uint64_t>::max());  // every 64-bit value is a room
    request.mutable_reserve()->set_owner("prefill-1");
    auto* token = request.mutable_record()->add_tokens();
    token->set_token_id(42);
    token->set_logprob(-0.5F);
    pd::PutResponse response;
    Check(store->Put(&context, request, &response));
  }
  pd::GetRequest request;
  request.mutable_key()->set_namespace_("cpp");
  request.mutable_key()->set_room(std::numeric_limits<std::uint64_t>::max());
  request.set_reader_id("decode-1");
  request.set_consume(true);
  request.mutable_max_wait()->set_seconds(10);
  pd::GetResponse response;
  {
    grpc::ClientContext context;
    SetDeadline(context);
    Check(store->Get(&context, request, &response));
  }
  std::cout << response.record().tokens(0).token_id() << "\n";

  grpc::ClientContext context;
  SetDeadline(context);
  request.mutable_key()->set_room(8);
  request.clear_max_wait();
  std::cout << ReasonOf(store->Get(&context, request, &response)) << "\n";
}
