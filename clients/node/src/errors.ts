import { status as Code, type Metadata } from "@grpc/grpc-js";
import { BadRequest, ErrorInfo, RetryInfo } from "./gen/google/rpc/error_details";
import { Status } from "./gen/google/rpc/status";
import type { ErrorReason } from "./gen/pd_handoff/v1/error_reason";

type Unprefixed<Name> = Name extends `ERROR_REASON_${infer Reason}` ? Reason : never;
/** Names of the store's reasons, without prefix, such as `ARENA_FULL`. */
export type Reason = Unprefixed<keyof typeof ErrorReason>;

/** One thing that is wrong with a request or record. */
export interface Violation {
  field: string;
  description: string;
}

/** Why a hand-off was aborted, as the other side put it. */
export interface AbortedFailure {
  httpStatus: number;
  reason: string;
  message: string;
}

const HTTP: Record<string, number> = {
  TOP_LOGPROBS_OVERFLOW: 400,
  FIELD_OVERFLOW: 400,
  INVALID_RECORD: 400,
  INVALID_REQUEST: 400,
  HANDOFF_EXISTS: 409,
  RECORD_IMMUTABLE: 409,
  STALE_RESERVATION: 409,
  ALREADY_CONSUMED: 409,
  REQUEST_MISMATCH: 409,
  HANDOFF_NOT_FOUND: 404,
  ARENA_FULL: 503,
  TOO_MANY_WAITERS: 503,
  PRODUCER_RESTARTED: 503,
  STORE_RESTARTED: 503,
  DRAINING: 503,
  ENGINE_UNREACHABLE: 503,
  UNAVAILABLE: 503,
  RESERVATION_EXPIRED: 504,
  RECORD_NOT_READY: 504,
  HANDOFF_EXPIRED: 504,
  DEADLINE_EXCEEDED: 504,
};

/** Any refusal, of the store or on the way to it. Branch on `reason`, never on the text. */
export class HandoffError extends Error {
  override readonly name = "HandoffError";

  constructor(
    message: string,
    /** The store's reason; for trouble of gRPC's own, the name of its status code, such as `UNAVAILABLE`. */
    readonly reason: Reason | (string & {}),
    /** Name of the gRPC status code. */
    readonly code: string,
    /** What the store sent with the reason, as strings. */
    readonly metadata: Readonly<Record<string, string>> = {},
    /** Milliseconds after which the store suggests a retry. */
    readonly retryAfterMs?: number,
    /** What is wrong, field by field, when a request or record is malformed. */
    readonly violations: readonly Violation[] = [],
  ) {
    super(message);
  }

  /** What a gateway should answer the user whose request this ended. */
  get httpStatus(): number {
    if (this.reason === "HANDOFF_ABORTED") return Number(this.metadata.http_status) || 500;
    return HTTP[this.reason] ?? 500;
  }

  /** Of HANDOFF_ABORTED: the failure; undefined for any other reason. */
  get failure(): AbortedFailure | undefined {
    if (this.reason !== "HANDOFF_ABORTED") return undefined;
    return { httpStatus: this.httpStatus, reason: this.metadata.failure_reason || "ABORTED", message: this.message };
  }

  /** Whether the same call may succeed a moment later. */
  get isTransient(): boolean {
    return this.reason === "UNAVAILABLE" || this.reason === "CANCELLED" || this.reason === "DRAINING";
  }
}

/** The error for a `google.rpc.Status`, of a failed call or of one item. */
export function ofStatus(status: Status): HandoffError {
  const code = Code[status.code] ?? "UNKNOWN";
  let info: ErrorInfo | undefined;
  let retryAfterMs: number | undefined;
  const violations: Violation[] = [];
  for (const { typeUrl, value } of status.details) {
    if (typeUrl.endsWith("/google.rpc.ErrorInfo")) {
      const candidate = ErrorInfo.decode(value);
      if (candidate.domain === "pd-handoff") info = candidate;
    } else if (typeUrl.endsWith("/google.rpc.RetryInfo")) {
      const delay = RetryInfo.decode(value).retryDelay;
      if (delay) retryAfterMs = Number(delay.seconds) * 1000 + delay.nanos / 1e6;
    } else if (typeUrl.endsWith("/google.rpc.BadRequest")) {
      for (const { field, description } of BadRequest.decode(value).fieldViolations)
        violations.push({ field, description });
    }
  }
  return new HandoffError(
    status.message,
    info?.reason ?? code,
    code,
    info ? { ...info.metadata } : {},
    retryAfterMs,
    violations,
  );
}

/** The error for a failed gRPC call. */
export function ofCall(error: { code: number; details: string; metadata: Metadata }): HandoffError {
  const [details] = error.metadata.get("grpc-status-details-bin");
  if (details instanceof Buffer) {
    const status = Status.decode(details);
    if (status.details.length > 0) return ofStatus(status);
  }
  const code = Code[error.code] ?? "UNKNOWN";
  return new HandoffError(error.details || code, code, code);
}
