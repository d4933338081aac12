"""Tests of the server's extension in C, against its sources and against Python."""
