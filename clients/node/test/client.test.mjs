// The client against a real store, whose address is in PD_HANDOFF_TARGET. tools/test-node.sh starts one.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import test from "node:test";
import pdHandoff from "pd-handoff";

const { Client, FinishReason, HandoffError } = pdHandoff;
const target = process.env.PD_HANDOFF_TARGET;
const room = () => randomBytes(8).readBigUInt64BE() | (1n << 63n); // above what a Number holds
const RECORD = {
  tokens: [{ tokenId: 0, logprob: -0.5, topLogprobs: { values: [-0.5, -1.5], tokenIds: [0, 7] } }],
  cachedTokens: { total: (1n << 63n) + 1n },
  finishReason: FinishReason.FINISH_REASON_STOP,
};

for (const kind of ["client", "session"]) {
  const each = (name, body) =>
    test(`${kind}: ${name}`, { timeout: 60_000 }, async () => {
      const client = new Client(target, { namespace: "node" });
      const session = client.session();
      try {
        await body(kind === "client" ? client : session, client);
      } finally {
        session.close();
        client.close();
      }
    });
  const refused = (promise, reason) =>
    assert.rejects(promise, (error) => {
      assert(error instanceof HandoffError, String(error));
      assert.equal(error.reason, reason);
      return true;
    });

  each("a record comes back as it was put", async (calls) => {
    const key = room();
    const reservation = await calls.reserve(key, { lease: 10.5, widths: { topLogprobs: 2 } });
    assert.equal(reservation.lease, 10.5);
    await calls.put(reservation, RECORD);
    const { record, attempt, storeEpoch } = await calls.get(key);
    assert.equal(record.tokens[0].tokenId, 0);
    assert.deepEqual(record.tokens[0].topLogprobs.tokenIds, [0, 7]);
    assert.deepEqual(record.tokens[0].topLogprobs.values, [-0.5, -1.5]);
    assert.equal(record.cachedTokens.total, (1n << 63n) + 1n);
    assert.equal(record.cachedTokens.host, undefined);
    assert.equal(attempt, 0n);
    assert.equal(storeEpoch, reservation.storeEpoch);
  });

  each("a Get waits for its Put, and holds up nothing", async (calls) => {
    const key = room();
    const waiting = calls.get({ room: key, sample: 3 }, { maxWait: 30 });
    await calls.capabilities();
    await calls.putOnce({ room: key, sample: 3 }, RECORD);
    assert.equal((await waiting).record.tokens.length, 1);
  });

  each("the largest room and room 0 are rooms", async (calls) => {
    for (const key of [0n, (1n << 64n) - 1n]) {
      await calls.putOnce(key, RECORD);
      assert.equal((await calls.get(key)).record.tokens[0].tokenId, 0);
    }
  });

  each("a Number is refused as a room", async (calls) => {
    await assert.rejects(calls.get(17), { name: "TypeError", message: /room must be a bigint \(write 17n\), not number/ });
    await assert.rejects(calls.reserve({ room: 17 }), TypeError);
    await assert.rejects(calls.abort("17"), TypeError);
    await assert.rejects(calls.get(1n << 64n), RangeError);
    await assert.rejects(calls.get(-1n), RangeError);
  });

  each("a token without an id is refused before it is sent", async (calls) => {
    await assert.rejects(calls.putOnce(room(), { tokens: [{ token_id: 42 }] }), /tokens\[0\]\.tokenId must be a number/);
  });

  each("errors carry reason, numbers, status", async (calls) => {
    const key = room();
    const { limits } = await calls.capabilities();
    const over = calls.reserve(key, { widths: { topLogprobs: limits.topLogprobs + 1 } });
    await assert.rejects(over, (error) => {
      assert.equal(error.reason, "TOP_LOGPROBS_OVERFLOW");
      assert.equal(error.code, "RESOURCE_EXHAUSTED");
      assert.equal(error.metadata.limit, String(limits.topLogprobs));
      assert.equal(error.httpStatus, 400);
      return true;
    });
    await refused(calls.get(key), "HANDOFF_NOT_FOUND");
    await calls.reserve(key, { owner: "a" });
    await refused(calls.reserve(key, { owner: "b" }), "HANDOFF_EXISTS");
    await refused(calls.get(key), "RECORD_NOT_READY");
    const bad = { tokens: [{ tokenId: 1, topLogprobs: { values: [1], tokenIds: [1, 2] } }] };
    await assert.rejects(calls.putOnce(room(), bad), (error) => {
      assert.equal(error.reason, "INVALID_RECORD");
      assert.match(error.violations[0].field, /top_logprobs/);
      return true;
    });
  });

  each("an abort is heard in the words of who aborted", async (calls) => {
    const key = room();
    const waiting = calls.get(key, { maxWait: 30 });
    waiting.catch(() => {});
    await calls.reserve(key);
    assert.equal(await calls.abort(key, { httpStatus: 400, reason: "TOO_LONG", message: "too long" }), true);
    await assert.rejects(waiting, (error) => {
      assert.deepEqual(error.failure, { httpStatus: 400, reason: "TOO_LONG", message: "too long" });
      assert.equal(error.httpStatus, 400);
      return true;
    });
  });

  each("a released slot is free, a record that two readers want is kept for both", async (calls) => {
    const key = room();
    await calls.release(await calls.reserve(key));
    await refused(calls.get(key), "HANDOFF_ABORTED");
    const other = room();
    await calls.putOnce(other, RECORD, { expectedReaders: 2 });
    await calls.get(other, { readerId: "one" });
    await calls.release(other, { readerId: "two" });
  });
}

test("100 calls share a session", { timeout: 60_000 }, async () => {
  const client = new Client(target);
  const session = client.session();
  const rooms = Array.from({ length: 50 }, room);
  const gets = rooms.map((key) => session.get(key, { maxWait: 30 }));
  await Promise.all(rooms.map((key, index) => session.putOnce(key, { tokens: [{ tokenId: index }] })));
  assert.deepEqual(
    (await Promise.all(gets)).map(({ record }) => record.tokens[0].tokenId),
    rooms.map((_, index) => index),
  );
  const left = session.get(room(), { maxWait: 30 });
  session.close();
  await assert.rejects(left, { reason: "CLIENT_CLOSED" });
  await assert.rejects(session.capabilities(), { reason: "CLIENT_CLOSED" });
  client.close();
});

test("no store: UNAVAILABLE, once the retries are over", { timeout: 60_000 }, async () => {
  const client = new Client("unix:/nonexistent/store", { retrySeconds: 0 });
  await assert.rejects(client.capabilities(), { reason: "UNAVAILABLE", httpStatus: 503 });
  client.close();
});
