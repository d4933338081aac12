#include "scan.h"

#include <string.h>

/* The schema in full; `native/__init__.py` compares it with the generated code before this is used. Field numbers below
 * are those of protos/pd_handoff/v1. A tag is number << 3 | wire type; all numbers are below 16, so a tag is a byte. */

enum { VARINT = 0, FIXED64 = 1, DELIMITED = 2, FIXED32 = 5 };
#define TAG(number, type) ((uint8_t)((number) << 3 | (type)))

enum {
  MAX_NAMESPACE = 128,
  MAX_ID = 256,
  MAX_DIGEST = 32,
  MAX_READERS = 1024,
  MAX_RANK = 8,
  FINISH_REASONS = 3,
  DATA_TYPES = 11,
};
static const uint8_t ELEMENT_BYTES[DATA_TYPES + 1] = {0, 4, 2, 2, 1, 1, 4, 8, 1, 2, 1, 1};
static const int64_t SECOND = 1000000000;
static const uint64_t MAX_SECONDS = 4000000000; /* more is left to Python, whose integers do not overflow */

/* What is left of a message. */
typedef struct {
  const uint8_t *at;
  const uint8_t *end;
} reader;

static reader reader_of(pd_slice slice) {
  reader r = {slice.data, slice.data + slice.size};
  return r;
}

static bool done(const reader *r) { return r->at == r->end; }

/* Whether the next field has this tag; passes over the tag. */
static bool next_is(reader *r, uint8_t tag) {
  if (r->at == r->end || *r->at != tag) return false;
  r->at++;
  return true;
}

/* A varint in its shortest form. */
static bool varint(reader *r, uint64_t *out) {
  const uint8_t *at = r->at;
  size_t left = (size_t)(r->end - at);
  if (left && at[0] < 0x80) {
    *out = at[0];
    r->at = at + 1;
    return true;
  }
  uint64_t value = 0;
  for (size_t n = 0; n < left && n < 10; n++) {
    uint64_t byte = at[n];
    value |= (byte & 0x7f) << (7 * n);
    if (byte < 0x80) {
      if (byte == 0 || (n == 9 && byte > 1)) return false; /* longer than needed, or more than 64 bits */
      *out = value;
      r->at = at + n + 1;
      return true;
    }
  }
  return false;
}

static bool varint_up_to(reader *r, uint64_t most, uint64_t *out) { return varint(r, out) && *out <= most; }

/* The value of a field that is left out when it is zero. */
static bool implicit(reader *r, uint64_t most, uint64_t *out) { return varint_up_to(r, most, out) && *out; }

static bool delimited(reader *r, pd_slice *out) {
  uint64_t size;
  if (!varint(r, &size) || size > (uint64_t)(r->end - r->at)) return false;
  out->data = r->at;
  out->size = (size_t)size;
  r->at += size;
  return true;
}

/* A length-delimited field that is left out when it is empty. */
static bool filled(reader *r, pd_slice *out) { return delimited(r, out) && out->size; }

static bool skip(reader *r, size_t size) {
  if ((size_t)(r->end - r->at) < size) return false;
  r->at += size;
  return true;
}

/* -- lists --------------------------------------------------------------------------------------------------------- */

static bool floats(reader *r, uint64_t *count) {
  pd_slice packed;
  if (!filled(r, &packed) || packed.size % 4) return false;
  *count = packed.size / 4;
  return true;
}

typedef enum { IDS, INT32S, INT64S } kind;

/* Nearly all that is read here is ids of at most four bytes, so these have a loop of their own. */
static const uint8_t *short_ids(const uint8_t *at, const uint8_t *end, uint64_t *count) {
  uint64_t n = 0;
  while (end - at >= 4) {
    if (at[0] < 0x80) {
      at += 1;
    } else if (at[1] < 0x80) {
      if (!at[1]) break;
      at += 2;
    } else if (at[2] < 0x80) {
      if (!at[2]) break;
      at += 3;
    } else if (at[3] < 0x80 && at[3]) {
      at += 4;
    } else {
      break;
    }
    n++;
  }
  *count = n;
  return at;
}

static bool integers(reader *r, kind of, uint64_t *count) {
  pd_slice packed;
  uint64_t n;
  if (!filled(r, &packed)) return false;
  reader list = reader_of(packed);
  list.at = short_ids(list.at, list.end, &n);
  for (; !done(&list); n++) {
    uint64_t value;
    if (!varint(&list, &value)) return false;
    if (of == IDS && value > INT32_MAX) return false; /* negative ones are refused, in words, by Python */
    if (of == INT32S && value > INT32_MAX && value < (uint64_t)INT32_MIN) return false;
  }
  *count = n;
  return true;
}

/* -- the record ---------------------------------------------------------------------------------------------------- */

static bool logprobs(pd_slice data, uint64_t *width) {
  reader r = reader_of(data);
  uint64_t values = 0, ids = 0;
  if (next_is(&r, TAG(1, DELIMITED)) && !floats(&r, &values)) return false;
  if (next_is(&r, TAG(2, DELIMITED)) && !integers(&r, IDS, &ids)) return false;
  *width = ids;
  return done(&r) && values == ids;
}

/* A field of Logprobs, if it comes next; `widest` grows with it. */
static bool logprobs_field(reader *r, uint8_t tag, uint64_t *widest) {
  pd_slice part;
  uint64_t width;
  if (!next_is(r, tag)) return true;
  if (!delimited(r, &part) || !logprobs(part, &width)) return false;
  if (width > *widest) *widest = width;
  return true;
}

static bool token(pd_slice data, uint64_t *top, uint64_t *listed) {
  reader r = reader_of(data);
  uint64_t id;
  if (!next_is(&r, TAG(1, VARINT)) || !varint_up_to(&r, INT32_MAX, &id)) return false;
  if (next_is(&r, TAG(2, FIXED32)) && !skip(&r, 4)) return false;
  return logprobs_field(&r, TAG(3, DELIMITED), top) && logprobs_field(&r, TAG(4, DELIMITED), listed) && done(&r);
}

/* CachedTokens and ModalityTokens: optional uint64s, numbered from 1. */
static bool counters(pd_slice data, int fields) {
  reader r = reader_of(data);
  uint64_t count;
  for (int number = 1; number <= fields; number++)
    if (next_is(&r, TAG(number, VARINT)) && !varint(&r, &count)) return false;
  return done(&r);
}

static bool sampling_mask(pd_slice data, uint64_t *width) {
  reader r = reader_of(data);
  uint64_t ids = 0, values = 0, truncated;
  if (next_is(&r, TAG(1, DELIMITED)) && !integers(&r, IDS, &ids)) return false;
  if (next_is(&r, TAG(2, DELIMITED)) && !floats(&r, &values)) return false;
  if (next_is(&r, TAG(3, VARINT)) && !implicit(&r, 1, &truncated)) return false;
  *width = ids;
  return done(&r) && (!values || values == ids);
}

static bool tensor(pd_slice data, uint64_t *bytes) {
  reader r = reader_of(data);
  uint64_t dtype, needed, dimension;
  pd_slice packed = {0}, content = {0};
  if (!next_is(&r, TAG(1, VARINT)) || !implicit(&r, DATA_TYPES, &dtype)) return false;
  needed = ELEMENT_BYTES[dtype];
  if (next_is(&r, TAG(2, DELIMITED))) {
    if (!filled(&r, &packed)) return false;
    reader shape = reader_of(packed);
    int rank = 0;
    while (!done(&shape)) {
      if (++rank > MAX_RANK || !varint_up_to(&shape, UINT32_MAX, &dimension)) return false;
      if (__builtin_mul_overflow(needed, dimension, &needed)) return false;
    }
  }
  if (next_is(&r, TAG(3, DELIMITED)) && !filled(&r, &content)) return false;
  *bytes = content.size;
  return done(&r) && content.size == needed;
}

static bool speculative(pd_slice data, uint64_t *topk, uint64_t *dsa, uint64_t *hidden) {
  reader r = reader_of(data);
  uint64_t values = 0;
  pd_slice part;
  if (next_is(&r, TAG(1, DELIMITED)) && !floats(&r, &values)) return false;
  if (next_is(&r, TAG(2, DELIMITED)) && !integers(&r, INT64S, topk)) return false;
  if (next_is(&r, TAG(3, DELIMITED)) && !(delimited(&r, &part) && tensor(part, hidden))) return false;
  if (next_is(&r, TAG(4, DELIMITED)) && !integers(&r, INT32S, dsa)) return false;
  return done(&r) && values == *topk;
}

static bool kv_checksum(pd_slice data) {
  static const uint8_t zero[8] = {0};
  reader r = reader_of(data);
  for (int number = 1; number <= 2; number++) {
    if (!next_is(&r, TAG(number, FIXED64))) continue;
    const uint8_t *value = r.at;
    if (!skip(&r, 8) || !memcmp(value, zero, 8)) return false;
  }
  return done(&r);
}

/* Widths, in the order of `Limits`. Engine states, draft tokens, ranks and attachments are left to Python. */
enum { TOKENS, TOP, LISTED, MASKED, TOPK, DSA, INFO_BYTES, HIDDEN, ATTACHED = 10 };

bool pd_scan_record(pd_slice data, const pd_limits *limits, pd_record *out) {
  enum { CACHED = 1, MODALITY = 2, MASK = 4, SPECULATIVE = 8, CHECKSUM = 16, FINISH = 32, REASONING = 64, INFO = 128 };
  reader r = reader_of(data);
  uint64_t number, *widths = out->widths;
  pd_slice part;
  memset(out, 0, sizeof *out);
  while (next_is(&r, TAG(1, DELIMITED))) {
    if (!delimited(&r, &part) || !token(part, &widths[TOP], &widths[LISTED])) return false;
    widths[TOKENS]++;
  }
  if (!widths[TOKENS]) return false;
  if (next_is(&r, TAG(2, DELIMITED))) {
    out->presence |= CACHED;
    if (!delimited(&r, &part) || !counters(part, 4)) return false;
  }
  if (next_is(&r, TAG(3, DELIMITED))) {
    out->presence |= MODALITY;
    if (!delimited(&r, &part) || !counters(part, 3)) return false;
  }
  if (next_is(&r, TAG(4, DELIMITED))) {
    out->presence |= MASK;
    if (!delimited(&r, &part) || !sampling_mask(part, &widths[MASKED])) return false;
  }
  if (next_is(&r, TAG(5, DELIMITED))) {
    out->presence |= SPECULATIVE;
    if (!delimited(&r, &part) || !speculative(part, &widths[TOPK], &widths[DSA], &widths[HIDDEN])) return false;
  }
  if (next_is(&r, TAG(6, DELIMITED))) {
    out->presence |= CHECKSUM;
    if (!delimited(&r, &part) || !kv_checksum(part)) return false;
  }
  if (next_is(&r, TAG(7, VARINT))) {
    out->presence |= FINISH;
    if (!implicit(&r, FINISH_REASONS, &number)) return false; /* UNSPECIFIED is refused, in words, by Python */
  }
  if (next_is(&r, TAG(8, VARINT))) {
    out->presence |= REASONING;
    if (!varint_up_to(&r, UINT32_MAX, &number)) return false;
  }
  if (next_is(&r, TAG(9, DELIMITED))) {
    out->presence |= INFO;
    if (!delimited(&r, &part)) return false;
    widths[INFO_BYTES] = part.size;
  }
  if (!done(&r) || data.size > limits->image_bytes) return false;
  for (int n = 0; n < PD_WIDTHS; n++)
    if (widths[n] > limits->widths[n]) return false;
  return true;
}

/* -- parts of requests --------------------------------------------------------------------------------------------- */

static bool is_name(uint8_t byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') || byte == '.' ||
         byte == '_' || byte == '-';
}

static bool key_field(reader *r, pd_key *out) {
  pd_slice part;
  uint64_t sample = 0;
  if (!next_is(r, TAG(1, DELIMITED)) || !delimited(r, &part)) return false;
  reader key = reader_of(part);
  if (next_is(&key, TAG(1, DELIMITED))) {
    if (!filled(&key, &out->namespace_) || out->namespace_.size > MAX_NAMESPACE) return false;
    for (size_t n = 0; n < out->namespace_.size; n++)
      if (!is_name(out->namespace_.data[n])) return false;
  }
  if (!next_is(&key, TAG(2, VARINT)) || !varint(&key, &out->room)) return false;
  if (next_is(&key, TAG(3, VARINT)) && !implicit(&key, UINT32_MAX, &sample)) return false;
  out->sample = (uint32_t)sample;
  return done(&key);
}

/* An owner, reader or instance id, or an epoch, of plain ASCII. */
static bool identifier(reader *r, pd_slice *out) {
  if (!filled(r, out) || out->size > MAX_ID) return false;
  for (size_t n = 0; n < out->size; n++)
    if (out->data[n] >= 0x80) return false;
  return true;
}

static bool request_digest(reader *r, pd_slice *out) { return filled(r, out) && out->size <= MAX_DIGEST; }

/* A Duration that is not negative, in nanoseconds. */
static bool duration(reader *r, int64_t *out) {
  pd_slice part;
  uint64_t seconds = 0, nanos = 0;
  if (!delimited(r, &part)) return false;
  reader fields = reader_of(part);
  if (next_is(&fields, TAG(1, VARINT)) && !implicit(&fields, MAX_SECONDS, &seconds)) return false;
  if (next_is(&fields, TAG(2, VARINT)) && !implicit(&fields, INT32_MAX, &nanos)) return false;
  *out = (int64_t)seconds * SECOND + (int64_t)nanos;
  return done(&fields);
}

static bool widths(reader *r, uint64_t *out) {
  pd_slice part;
  if (!delimited(r, &part)) return false;
  reader fields = reader_of(part);
  for (int n = 0; n < PD_WIDTHS; n++) {
    uint64_t most = n == HIDDEN || n == ATTACHED ? UINT64_MAX : UINT32_MAX;
    if (next_is(&fields, TAG(n + 1, VARINT)) && !implicit(&fields, most, &out[n])) return false;
  }
  return done(&fields);
}

static bool producer(reader *r, pd_reserve *out) {
  pd_slice part;
  if (!delimited(r, &part)) return false;
  reader fields = reader_of(part);
  if (!next_is(&fields, TAG(1, DELIMITED)) || !identifier(&fields, &out->instance_id)) return false;
  if (next_is(&fields, TAG(2, VARINT)) && !implicit(&fields, UINT64_MAX, &out->epoch)) return false;
  return done(&fields);
}

/* All of a ReserveRequest but its key. */
static bool reservation(reader *r, pd_reserve *out) {
  uint64_t readers;
  out->lease = out->max_wait = -1;
  out->expected_readers = 1;
  if (!next_is(r, TAG(2, DELIMITED)) || !identifier(r, &out->owner)) return false;
  if (next_is(r, TAG(3, DELIMITED))) {
    out->has_widths = true;
    if (!widths(r, out->widths)) return false;
  }
  if (next_is(r, TAG(4, DELIMITED)) && !duration(r, &out->lease)) return false;
  if (next_is(r, TAG(5, VARINT))) {
    if (!implicit(r, MAX_READERS, &readers)) return false;
    out->expected_readers = (uint32_t)readers;
  }
  if (next_is(r, TAG(6, VARINT)) && !implicit(r, UINT64_MAX, &out->attempt)) return false;
  if (next_is(r, TAG(7, DELIMITED))) {
    out->has_producer = true;
    if (!producer(r, out)) return false;
  }
  if (next_is(r, TAG(8, DELIMITED)) && !duration(r, &out->max_wait)) return false;
  if (next_is(r, TAG(9, DELIMITED)) && !request_digest(r, &out->request_digest)) return false;
  return done(r);
}

/* -- requests ------------------------------------------------------------------------------------------------------ */

bool pd_scan_reserve(pd_slice data, pd_reserve *out) {
  reader r = reader_of(data);
  memset(out, 0, sizeof *out);
  return key_field(&r, &out->key) && reservation(&r, out);
}

bool pd_scan_put(pd_slice data, const pd_limits *limits, pd_put *out) {
  reader r = reader_of(data);
  pd_slice part;
  memset(out, 0, sizeof *out);
  if (!key_field(&r, &out->key)) return false;
  bool by_token = next_is(&r, TAG(2, DELIMITED));
  if (by_token && !filled(&r, &out->token)) return false;
  if (!next_is(&r, TAG(3, DELIMITED)) || !delimited(&r, &out->image)) return false;
  if (next_is(&r, TAG(4, DELIMITED))) {
    if (!delimited(&r, &part)) return false;
    reader reserve = reader_of(part);
    out->reserves = true;
    if (!reservation(&reserve, &out->reserve)) return false;
    out->reserve.key = out->key;
  }
  return done(&r) && out->reserves != by_token && pd_scan_record(out->image, limits, &out->record);
}

bool pd_scan_get(pd_slice data, pd_get *out) {
  reader r = reader_of(data);
  uint64_t consume;
  memset(out, 0, sizeof *out);
  out->max_wait = -1;
  if (!key_field(&r, &out->key)) return false;
  if (next_is(&r, TAG(2, VARINT)) && !implicit(&r, UINT64_MAX, &out->attempt)) return false;
  if (next_is(&r, TAG(3, DELIMITED)) && !duration(&r, &out->max_wait)) return false;
  if (next_is(&r, TAG(4, DELIMITED)) && !identifier(&r, &out->reader_id)) return false;
  if (next_is(&r, TAG(5, VARINT))) {
    if (!implicit(&r, 1, &consume)) return false;
    out->consume = true;
  }
  if (next_is(&r, TAG(6, DELIMITED)) && !identifier(&r, &out->expected_store_epoch)) return false;
  if (next_is(&r, TAG(7, DELIMITED)) && !request_digest(&r, &out->request_digest)) return false;
  return done(&r) && (out->reader_id.size || !out->consume);
}

bool pd_scan_session(pd_slice data, pd_session *out) {
  reader r = reader_of(data);
  memset(out, 0, sizeof *out);
  if (next_is(&r, TAG(1, VARINT)) && !implicit(&r, UINT64_MAX, &out->call_id)) return false;
  for (uint32_t number = 2; number <= 7; number++) {
    if (!next_is(&r, TAG(number, DELIMITED))) continue;
    out->number = number;
    return delimited(&r, &out->call) && done(&r);
  }
  return false;
}

bool pd_next_item(pd_slice *rest, pd_slice *item) {
  reader r = reader_of(*rest);
  if (!next_is(&r, TAG(1, DELIMITED)) || !delimited(&r, item)) return false;
  rest->data = r.at;
  rest->size = (size_t)(r.end - r.at);
  return true;
}
