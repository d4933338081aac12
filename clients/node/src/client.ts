import { randomUUID } from "node:crypto";
import { type ChannelCredentials, credentials as channel, Metadata } from "@grpc/grpc-js";
import { Calls, type Method } from "./calls";
import { HandoffError, ofCall } from "./errors";
import { MetadataStoreClient } from "./gen/pd_handoff/v1/metadata_store";
import { Session } from "./session";

export interface ClientOptions {
  /** For keys that name none. */
  namespace?: string;
  /** Names this reader among those expected; made up when left out. */
  readerId?: string;
  /** Seconds that a call may take, on top of its `maxWait`; 5. */
  timeout?: number;
  /** Seconds that a store may be away before a call gives up; 10. 0 switches retries off. */
  retrySeconds?: number;
  /** Plaintext when left out. */
  credentials?: ChannelCredentials;
  /** Bearer token, or what returns it, asked at each call. */
  token?: string | (() => string);
}

/** A client of one store. */
export class Client extends Calls {
  private readonly stub: MetadataStoreClient;
  private readonly timeout: number;
  private readonly retrySeconds: number;
  private readonly token: string | (() => string) | undefined;

  /** `target` is `host:port` or `unix:PATH`. */
  constructor(
    readonly target: string = "127.0.0.1:50071",
    options: ClientOptions = {},
  ) {
    super(options.namespace ?? "", options.readerId ?? `node-${randomUUID()}`);
    this.timeout = options.timeout ?? 5;
    this.retrySeconds = options.retrySeconds ?? 10;
    this.token = options.token;
    this.stub = new MetadataStoreClient(target, options.credentials ?? channel.createInsecure(), {
      "grpc.max_receive_message_length": -1,
      "grpc.enable_http_proxy": 0,
      "grpc.initial_reconnect_backoff_ms": 100,
      "grpc.max_reconnect_backoff_ms": 1000,
    });
  }

  /** One stream for any number of calls; each costs a fraction of a call alone. Close it when done. */
  session(): Session {
    return new Session(this.stub.session(this.metadata()), this.namespace, this.readerId, this.timeout);
  }

  /** Closes the connection. */
  close(): void {
    this.stub.close();
  }

  private metadata(): Metadata {
    const metadata = new Metadata();
    const token = typeof this.token === "function" ? this.token() : this.token;
    if (token !== undefined) metadata.set("authorization", `Bearer ${token}`);
    return metadata;
  }

  /** @internal */
  protected async call(method: Method, request: unknown, maxWait: number): Promise<any> {
    const until = Date.now() + this.retrySeconds * 1000;
    for (let pause = 50; ; pause = Math.min(2 * pause, 1000)) {
      try {
        return await this.once(method, request, maxWait);
      } catch (error) {
        if (!(error instanceof HandoffError && error.isTransient)) throw error;
        const wait = Math.max(pause, error.retryAfterMs ?? 0);
        if (Date.now() + wait > until) throw error;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
  }

  private once(method: Method, request: unknown, maxWait: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const deadline = Date.now() + (this.timeout + maxWait) * 1000;
      const done = (error: Parameters<typeof ofCall>[0] | null, response: unknown) =>
        error ? reject(ofCall(error)) : resolve(response);
      (this.stub as any)[method](request, this.metadata(), { deadline }, done);
    });
  }
}
