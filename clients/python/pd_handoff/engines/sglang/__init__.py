"""SGLang's metadata path through a store: the construction line that changes, and the few lines around it.

    from pd_handoff.engines.sglang import SlotAllocator as ReqToMetadataIdxAllocator
    from pd_handoff.engines.sglang import StoreMetadataBuffers as MetadataBuffers

Written for, and tested against, the class `MetadataBuffers` of SGLang 0.5.23; `upstream.differences()` says what a
later one has changed. Nothing here imports sglang or torch until it has to touch a tensor or abort a request of
SGLang's."""

from __future__ import annotations

from pd_handoff.engines.sglang.admission import Admission, Admitted, RequestRefused, model_info
from pd_handoff.engines.sglang.append import append_to_request
from pd_handoff.engines.sglang.bridge import record_from_row, write_row
from pd_handoff.engines.sglang.buffers import StoreMetadataBuffers, report_abort, report_finish
from pd_handoff.engines.sglang.environment import admit, link_from_environment
from pd_handoff.engines.sglang.keys import (
    give_sample_room,
    is_fake_transfer,
    key_of,
    sample_keys,
    sample_room,
)
from pd_handoff.engines.sglang.link import StoreLink
from pd_handoff.engines.sglang.request import record_from_request
from pd_handoff.engines.sglang.row import RowMismatch, RowShape, row_from_record
from pd_handoff.engines.sglang.slots import Slot, SlotAllocator

__all__ = [
    "Admission",
    "Admitted",
    "RequestRefused",
    "RowMismatch",
    "RowShape",
    "Slot",
    "SlotAllocator",
    "StoreLink",
    "StoreMetadataBuffers",
    "admit",
    "append_to_request",
    "give_sample_room",
    "is_fake_transfer",
    "key_of",
    "link_from_environment",
    "model_info",
    "record_from_request",
    "record_from_row",
    "report_abort",
    "report_finish",
    "row_from_record",
    "sample_keys",
    "sample_room",
    "write_row",
]
