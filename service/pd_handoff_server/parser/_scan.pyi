# Each reads a serialized message. None: it is not exactly what a serializer writes, or something in it is refused, and
# the Python reader has to look. All raise TypeError for arguments of other types.

_Key = tuple[str, int, int]  # namespace, room, sample
_Widths = tuple[int, ...]  # as many as `Limits` has
# The arguments of a `Spec` - key, owner, attempt, lease in ns, expected readers, producer, widths, request digest - and
# max_wait in ns.
_Spec = tuple[_Key, str, int, int | None, int, tuple[str, int] | None, _Widths | None, bytes]
_Reserve = tuple[_Spec, int]
# Key, token, the packed record, its presence bits and widths as in `Draft`, and the reservation of a one-shot Put.
_Put = tuple[_Key, bytes, bytes, int, _Widths, _Reserve | None]
# Key, attempt, max_wait in ns, reader id, consume, expected store epoch, request digest.
_Get = tuple[_Key, int, int, str, bool, str, bytes]

SCHEMA: str  # the schema_fingerprint of the schema that it can read

# `limits` are `Limits` in order and `Layout.image_bytes`, packed as "=12Q".
def put(data: bytes, limits: bytes, /) -> _Put | None: ...
def put_all(data: bytes, limits: bytes, /) -> list[_Put] | None: ...
def get(data: bytes, /) -> _Get | None: ...
def get_all(data: bytes, /) -> list[_Get] | None: ...
def reserve(data: bytes, /) -> _Reserve | None: ...
def reserve_all(data: bytes, /) -> list[_Reserve] | None: ...

# Call id, field number of the call, and its serialized request, not looked into.
def session(data: bytes, /) -> tuple[int, int, bytes] | None: ...

# A Timestamp of nanoseconds since the Unix epoch, as the length-delimited field of this tag; 0 for what is below.
def stamp(tag: int, wall: int, /) -> bytes: ...

# A SessionResponse with the field of this number.
def answer(call_id: int, number: int, payload: bytes, /) -> bytes: ...
