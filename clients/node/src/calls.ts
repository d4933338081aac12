import { randomUUID } from "node:crypto";
import type { Duration } from "./gen/google/protobuf/duration";
import {
  AbortRequest,
  type CapabilitiesResponse,
  Failure,
  GetRequest,
  type GetResponse,
  PutRequest,
  type PutResponse,
  ReleaseRequest,
  ReserveRequest,
  type ReserveResponse,
  type Widths,
} from "./gen/pd_handoff/v1/metadata_store";
import { HandoffKey, HandoffRecord } from "./gen/pd_handoff/v1/record";

/** Names one hand-off. A room alone is the first sample in the client's own namespace. */
export type Key = bigint | { room: bigint; sample?: number; namespace?: string };

/** A claimed slot. */
export interface Reservation {
  key: HandoffKey;
  token: Buffer;
  /** Seconds, as granted. */
  lease: number;
  storeEpoch: string;
}

type Partials<T> = T extends bigint | number | string | boolean | Uint8Array | undefined
  ? T
  : T extends Array<infer Item>
    ? Array<Partials<Item>>
    : { [Name in keyof T]?: Partials<T[Name]> };
/** A record; what is left out is absent. */
export type RecordInit = Partials<HandoffRecord>;

export interface ReserveOptions {
  /** Makes the call idempotent; made up when left out. */
  owner?: string;
  widths?: Partial<Widths>;
  /** Seconds. */
  lease?: number;
  expectedReaders?: number;
  attempt?: bigint;
  /** Seconds to wait for a free slot. */
  maxWait?: number;
}

export interface GetOptions {
  attempt?: bigint;
  /** Seconds to wait for the record; also for a Reserve that has not come yet. */
  maxWait?: number;
  readerId?: string;
  /** Count as a reader who has had the record; true unless said otherwise. */
  consume?: boolean;
  expectedStoreEpoch?: string;
}

const LARGEST_ROOM = (1n << 64n) - 1n;

/** The calls of a store, whatever carries them: `Client` makes each alone, `Session` sends all over one stream. */
export abstract class Calls {
  constructor(
    protected readonly namespace: string,
    protected readonly readerId: string,
  ) {}

  /** @internal */
  protected abstract call(method: Method, request: unknown, maxWait: number): Promise<any>;

  /** The limits that the store enforces. Rejects with SCHEMA_MISMATCH or an overflow where they do not fit. */
  async capabilities(
    options: { required?: Partial<Widths>; expectedSchemaFingerprint?: string } = {},
  ): Promise<CapabilitiesResponse> {
    return this.call("capabilities", options, 0);
  }

  /** Claims a slot before the prefill. The same owner again renews the lease. */
  async reserve(key: Key, options: ReserveOptions = {}): Promise<Reservation> {
    const request = this.reserveRequest(key, options);
    const response: ReserveResponse = await this.call("reserve", request, options.maxWait ?? 0);
    return {
      key: request.key!,
      token: response.token,
      lease: response.lease ? Number(response.lease.seconds) + response.lease.nanos / 1e9 : 0,
      storeEpoch: response.storeEpoch,
    };
  }

  /** Publishes the record, whole or not at all. */
  async put(reservation: Reservation, record: RecordInit): Promise<PutResponse> {
    const { key, token } = reservation;
    return this.call("put", PutRequest.fromPartial({ key, token, record: checked(record) }), 0);
  }

  /** Reserve and put in one call; refused, it leaves no reservation. */
  async putOnce(key: Key, record: RecordInit, options: ReserveOptions = {}): Promise<PutResponse> {
    const { key: named, ...reserve } = this.reserveRequest(key, options);
    const request = PutRequest.fromPartial({ key: named, record: checked(record), reserve });
    return this.call("put", request, options.maxWait ?? 0);
  }

  /** The record, and when it was reserved and published. Waits up to `maxWait` seconds. */
  async get(key: Key, options: GetOptions = {}): Promise<GetResponse> {
    const request = GetRequest.fromPartial({
      key: this.key(key),
      attempt: options.attempt ?? 0n,
      maxWait: duration(options.maxWait),
      readerId: options.readerId ?? this.readerId,
      consume: options.consume ?? true,
      expectedStoreEpoch: options.expectedStoreEpoch,
    });
    return this.call("get", request, options.maxWait ?? 0);
  }

  /** Gives a reserved slot back, or says that this reader needs no more of a key. Can be repeated. */
  async release(what: Reservation | Key, options: { readerId?: string } = {}): Promise<void> {
    const request =
      typeof what === "object" && "token" in what
        ? { key: what.key, token: what.token }
        : { key: this.key(what), readerId: options.readerId ?? this.readerId };
    await this.call("release", ReleaseRequest.fromPartial(request), 0);
  }

  /** Ends a hand-off for everyone, also before its Reserve. Resolves to true when this call ended it. */
  async abort(
    what: Reservation | Key,
    failure: Partial<Failure> = {},
    options: { attempt?: bigint } = {},
  ): Promise<boolean> {
    const target =
      typeof what === "object" && "token" in what
        ? { key: what.key, token: what.token }
        : { key: this.key(what), attempt: options.attempt };
    const request = AbortRequest.fromPartial({
      ...target,
      failure: { httpStatus: 500, reason: "ABORTED", message: "", ...failure },
    });
    return (await this.call("abort", request, 0)).ended;
  }

  private reserveRequest(key: Key, options: ReserveOptions): ReserveRequest {
    return ReserveRequest.fromPartial({
      key: this.key(key),
      owner: options.owner ?? randomUUID(),
      widths: options.widths,
      lease: duration(options.lease),
      expectedReaders: options.expectedReaders ?? 0,
      attempt: options.attempt ?? 0n,
      maxWait: duration(options.maxWait),
    });
  }

  private key(key: Key): HandoffKey {
    const { room, sample = 0, namespace = this.namespace } = typeof key === "object" ? key : { room: key };
    if (typeof room !== "bigint")
      throw new TypeError(`room must be a bigint (write 17n), not ${typeof room}: a Number loses digits above 2^53`);
    if (room < 0n || room > LARGEST_ROOM) throw new RangeError(`room must be from 0 to 2^64 - 1, is ${room}`);
    return HandoffKey.fromPartial({ room, sample, namespace });
  }
}

/** @internal */
export type Method = "capabilities" | "reserve" | "put" | "get" | "release" | "abort";

function checked(record: RecordInit): HandoffRecord {
  for (const [index, token] of (record.tokens ?? []).entries()) {
    if (typeof token?.tokenId !== "number")
      throw new TypeError(`record.tokens[${index}].tokenId must be a number; 0 is a token`);
  }
  return HandoffRecord.fromPartial(record as HandoffRecord);
}

function duration(seconds: number | undefined): Duration | undefined {
  if (seconds === undefined) return undefined;
  if (!(Number.isFinite(seconds) && seconds >= 0)) throw new RangeError(`seconds must not be negative, are ${seconds}`);
  const whole = Math.floor(seconds);
  return { seconds: BigInt(whole), nanos: Math.min(999_999_999, Math.round((seconds - whole) * 1e9)) };
}
