import type { ClientDuplexStream } from "@grpc/grpc-js";
import { Calls, type Method } from "./calls";
import { HandoffError, ofCall, ofStatus } from "./errors";
import { SessionRequest, type SessionResponse } from "./gen/pd_handoff/v1/metadata_store";

interface Pending {
  resolve(response: unknown): void;
  reject(error: Error): void;
  timer: NodeJS.Timeout;
}

/** Single calls over one stream: answered in any order, and a waiting Get holds up nothing. */
export class Session extends Calls {
  private readonly pending = new Map<bigint, Pending>();
  private next = 1n;
  private ended: Error | undefined;

  /** @internal */
  constructor(
    private readonly stream: ClientDuplexStream<SessionRequest, SessionResponse>,
    namespace: string,
    readerId: string,
    private readonly timeout: number,
  ) {
    super(namespace, readerId);
    stream.on("data", (response: SessionResponse) => this.answer(response));
    stream.on("error", (error: Parameters<typeof ofCall>[0]) => this.end(ofCall(error)));
    stream.on("end", () => this.end(new HandoffError("the session has ended", "UNAVAILABLE", "UNAVAILABLE")));
  }

  /** Ends the stream. What still waits is rejected; what is done stays done. */
  close(): void {
    this.end(new HandoffError("the session was closed", "CLIENT_CLOSED", "CANCELLED"));
    this.stream.end();
    this.stream.cancel();
  }

  /** @internal */
  protected call(method: Method, request: unknown, maxWait: number): Promise<any> {
    if (this.ended) return Promise.reject(this.ended);
    const callId = this.next++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => {
          this.pending.delete(callId);
          reject(new HandoffError("no answer within the timeout", "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"));
        },
        (this.timeout + maxWait) * 1000,
      );
      this.pending.set(callId, { resolve, reject, timer });
      this.stream.write(SessionRequest.fromPartial({ callId, [method]: request } as SessionRequest));
    });
  }

  private answer(response: SessionResponse): void {
    const waiting = this.pending.get(response.callId);
    if (!waiting) return; // its timeout was first
    this.pending.delete(response.callId);
    clearTimeout(waiting.timer);
    if (response.error) waiting.reject(ofStatus(response.error));
    else
      waiting.resolve(
        response.reserve ??
          response.put ??
          response.get ??
          response.release ??
          response.abort ??
          response.capabilities,
      );
  }

  private end(error: Error): void {
    this.ended ??= error;
    for (const { reject, timer } of this.pending.values()) {
      clearTimeout(timer);
      reject(error);
    }
    this.pending.clear();
  }
}
