"""Prefill and decode of SGLang, its real class and queues, on CPU, with a store between them instead of RDMA."""
