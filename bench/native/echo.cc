// A gRPC C++ server that does nothing but answer: what the benchmarks compare one call in flight with. Every Put is
// answered by PUT bytes, every other call by GET bytes. One thread and one completion queue: the quickest of gRPC's
// ways to serve one call at a time.
//
//     grpc-cpp-echo ADDRESS PUT GET    serves until it is ended; prints "serving" once it listens
//     grpc-cpp-echo --version          prints the version of gRPC
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <iostream>
#include <memory>
#include <string>

namespace {

struct Echo {
  grpc::ByteBuffer put, get;
  grpc::AsyncGenericService service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
};

// One call, from waiting for it to its end. It deletes itself.
class Call {
 public:
  explicit Call(Echo& echo) : echo_(echo) {
    echo_.service.RequestCall(&context_, &io_, echo_.queue.get(), echo_.queue.get(), this);
  }

  // The operation that this call waited for has ended, well or not.
  void Proceed(bool ok) {
    if (!ok || step_ == Step::kAnswer) {
      delete this;
    } else if (step_ == Step::kBegin) {
      new Call(echo_);  // the next one may come meanwhile
      step_ = Step::kRead;
      io_.Read(&request_, this);
    } else {
      step_ = Step::kAnswer;
      io_.WriteAndFinish(Answer(), grpc::WriteOptions(), grpc::Status::OK, this);
    }
  }

 private:
  enum class Step { kBegin, kRead, kAnswer };

  const grpc::ByteBuffer& Answer() const {
    const std::string& method = context_.method();
    const bool put = method.size() > 4 && method.compare(method.size() - 4, 4, "/Put") == 0;
    return put ? echo_.put : echo_.get;
  }

  Echo& echo_;
  Step step_ = Step::kBegin;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter io_{&context_};
  grpc::ByteBuffer request_;
};

grpc::ByteBuffer Zeros(const char* size) {
  grpc::Slice slice(std::string(std::stoul(size), '\0'));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--version") {
    std::cout << grpc::Version() << std::endl;
    return 0;
  }
  if (argc != 4) {
    std::cerr << "usage: " << argv[0] << " ADDRESS PUT GET" << std::endl;
    return 2;
  }
  Echo echo;
  echo.put = Zeros(argv[2]);
  echo.get = Zeros(argv[3]);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(argv[1], grpc::InsecureServerCredentials());
  builder.RegisterAsyncGenericService(&echo.service);
  echo.queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server) return 1;
  std::cout << "serving" << std::endl;
  new Call(echo);
  void* tag = nullptr;
  bool ok = false;
  while (echo.queue->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
}
