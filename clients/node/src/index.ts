export { credentials } from "@grpc/grpc-js";
export type { GetOptions, Key, RecordInit, Reservation, ReserveOptions } from "./calls";
export { Client, type ClientOptions } from "./client";
export { type AbortedFailure, HandoffError, type Reason, type Violation } from "./errors";
export type {
  CapabilitiesResponse,
  Failure,
  GetResponse,
  PutResponse,
  Widths,
} from "./gen/pd_handoff/v1/metadata_store";
export type { HandoffKey, HandoffRecord, Logprobs, SampledToken, SpeculativeState, Tensor } from "./gen/pd_handoff/v1/record";
export { DataType, FinishReason } from "./gen/pd_handoff/v1/record";
export { ErrorReason } from "./gen/pd_handoff/v1/error_reason";
export { Session } from "./session";
