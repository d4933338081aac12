"""Tokens: bound to store, slot and generation, and never the same twice."""

from __future__ import annotations

from pd_handoff_server.lifecycle.tokens import TokenMint

EPOCH = "0011223344556677"


def test_a_token_binds_epoch_slot_and_generation() -> None:
    def fixed(size: int) -> bytes:
        return bytes(size)

    plain = TokenMint(EPOCH, fixed).mint(1, 2)
    assert len(plain) == 32
    others = [
        TokenMint("ff" * 8, fixed).mint(1, 2),
        TokenMint(EPOCH, fixed).mint(2, 2),
        TokenMint(EPOCH, fixed).mint(1, 3),
        TokenMint(EPOCH, lambda size: b"\1" * size).mint(1, 2),
    ]
    assert len({plain, *others}) == 5


def test_no_token_comes_twice_even_for_one_slot_and_generation() -> None:
    mint = TokenMint(EPOCH)
    tokens = {mint.mint(0, 0) for _ in range(5000)}
    assert len(tokens) == 5000


def test_all_randomness_is_used_once_and_fetched_in_blocks() -> None:
    fetched: list[bytes] = []

    def random(size: int) -> bytes:
        fetched.append(bytes((len(fetched) * 7 + at) % 256 for at in range(size)))
        return fetched[-1]

    mint = TokenMint(EPOCH, random)
    nonces = [mint.mint(0, 0)[-12:] for _ in range(600)]
    assert b"".join(fetched).startswith(b"".join(nonces))
    assert len(fetched) == 3


def test_the_largest_slot_and_generation_fit() -> None:
    assert len(TokenMint(EPOCH).mint(2**24 - 1, 2**64 - 1)) == 32
