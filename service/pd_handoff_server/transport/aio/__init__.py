"""The `grpc.aio` transport."""
