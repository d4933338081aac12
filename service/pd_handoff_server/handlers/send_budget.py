"""Answers that gRPC has been given and that are not out yet: how much memory their readers may take.

gRPC takes whatever it is given to send, and keeps it while the peer opens no window for it. What calls hold so is
added up, and when it is much a further call is carried out only while

    (held in all) + (held for its caller) + (held for its connection)  <  the limit.

So a connection that does not read gets a third of the limit, a caller with many of them half, and all together not
more than the limit and an answer; whoever holds most is refused first, and whoever reads goes on. Up to a third of the
limit nobody can be over it, and nothing but the sum is kept: accounts are opened when they are needed, from the calls
that are alive, and closed when the pressure is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from pd_handoff_server import refusal
from pd_handoff_server.refusal import Refusal

if TYPE_CHECKING:
    from pd_handoff_server.store.interface import Done

    from .call import Answer, Call, Handler

UNREAD_BYTES: Final = 256 << 20
"""The limit where no other is set."""

OVER: Final = -1
"""What a call that is over holds."""


class Account:
    """What one connection of a caller holds.

    Attributes:
        books: that it stands in; None once it was closed.
    """

    __slots__ = ("books", "held", "peer", "sharer")

    def __init__(self, books: Books, sharer: str, peer: str) -> None:
        self.books: Books | None = books
        self.sharer = sharer
        self.peer = peer
        self.held = 0


class Books:
    """All accounts. Whoever uses them has the lock of `Unread.books_lock`."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str], Account] = {}
        self._callers: dict[str, int] = {}

    def enter(self, call: Call) -> None:
        """Note what the call holds now."""
        account, unread = call.account, max(call.unread, 0)
        if account is None or account.books is not self:
            if not unread:
                return
            account = call.account = self._account(call.sharer, call.peer)
            call.booked = 0
        change = unread - call.booked
        call.booked += change
        account.held += change
        left = self._callers.get(account.sharer, 0) + change
        self._callers[account.sharer] = left
        if not left:
            del self._callers[account.sharer]
        if not account.held:
            account.books = None
            del self._accounts[account.sharer, account.peer]

    def _account(self, sharer: str, peer: str) -> Account:
        account = self._accounts.get((sharer, peer))
        if account is None:
            account = self._accounts[sharer, peer] = Account(self, sharer, peer)
        return account

    def share(self, call: Call) -> int:
        """Bytes held for the call's caller, and once more those for its connection."""
        sharer = call.sharer
        account = self._accounts.get((sharer, call.peer))
        return self._callers.get(sharer, 0) + (0 if account is None else account.held)


class Unread:
    """The bound. A call holds what it has last been said to hold, until it is over.

    Attributes:
        lock: for `elsewhere` and for what is changed together with it; held for a few instructions at a time.
        direct: bytes given and taken by the thread that serves; changed there alone, and may be below 0.
        elsewhere: bytes given by other threads, and all that is counted under `lock`.
        books: None while there is no need of accounts.
        least: bytes up to which nobody can hold too much.
    """

    def __init__(self, limit: int = UNREAD_BYTES) -> None:
        """`limit` in bytes."""
        self.limit: Final = limit
        self.lock = threading.Lock()
        self.direct = 0
        self.elsewhere = 0
        self.books: Books | None = None
        self.least: Final = -(-limit // 3)
        self._books_lock = threading.Lock()
        self._alive: set[Call] = set()
        self._others: Callable[[], Iterable[Call]] = tuple

    @property
    def held(self) -> int:
        """Bytes of answers that are not out."""
        return self.direct + self.elsewhere

    @property
    def pressing(self) -> bool:
        """Whether so much is held that somebody may hold too much."""
        return self.direct + self.elsewhere >= self.least

    # -- before a call is carried out ----------------------------------------------------------------------------------

    def wrap(self, method: str, handler: Handler) -> Handler:
        """A `Wrap`: raises Refusal in the place of the call when its caller holds too much."""
        del method

        def admitted(data: bytes, call: Call, done: Done) -> Answer:
            self.admit(call)
            return handler(data, call, done)

        return admitted

    def admit(self, call: Call) -> None:
        """Raises Refusal TOO_MANY_WAITERS when the call's caller holds too much."""
        if not self.pressing:
            return
        with self._books_lock:
            share = self._open().share(call)
        if self.held + share >= self.limit:
            raise refusal.too_many_unread_bytes(self.limit)

    def over(self, call: Call) -> Refusal | None:
        """As `admit`, for a call that has waited and has its answer now."""
        try:
            self.admit(call)
        except Refusal as refused:
            return refused
        return None

    # -- what calls hold -----------------------------------------------------------------------------------------------

    def watch(self, others: Callable[[], Iterable[Call]]) -> None:
        """`others` tells which calls are alive beside those that were begun here."""
        self._others = others

    def begin(self, call: Call) -> None:
        """A call whose transport does not keep it itself; `end` must follow."""
        self._alive.add(call)

    def end(self, call: Call) -> None:
        """It is over, and can hold nothing any more: its answer may still come, from another thread."""
        self._alive.discard(call)
        with self.lock:
            if call.unread > 0:
                self.elsewhere -= call.unread
            call.unread = OVER
        self.book(call)

    def hold(self, call: Call, size: int) -> None:
        """The call holds so many bytes, whatever it held before."""
        with self.lock:
            if call.unread != OVER:
                self.elsewhere += size - call.unread
                call.unread = size
        self.book(call)

    def hold_more(self, call: Call, size: int) -> None:
        """The call holds so many bytes more."""
        with self.lock:
            if call.unread != OVER:
                self.elsewhere += size
                call.unread += size
        self.book(call)

    def book(self, call: Call) -> None:
        """What the call holds has changed; to be told by whoever changes it without `hold`, while there are books."""
        if self.books is None:
            return
        with self._books_lock:
            if self.books is not None:
                self.books.enter(call)
                if self.held < self.least // 2:
                    self.books = None

    def _open(self) -> Books:
        if self.books is None:
            # Seen by others before their calls are looked at: what changes from here on is entered by them, too.
            books = self.books = Books()
            for call in (*tuple(self._alive), *self._others()):
                books.enter(call)
        return self.books
