/* Requests read where they lie: a message is either exactly what a serializer of this schema writes, with nothing in it
 * that the contract refuses, or it is left to the Python reader, which finds the words for what is wrong.
 *
 * Every function returns true only if the whole input has been understood. It never writes, allocates or keeps
 * anything, and never reads outside [data, data + size). Slices in the results point into the input.
 */
#ifndef PD_SCAN_H
#define PD_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The schema that this was written for, as Capabilities tells it (`schema_fingerprint`). Whoever changes protos/ looks
 * through scan.c and then changes this; with any other schema the reader is not used. */
#define PD_SCHEMA "6ae78d138d675628"

typedef struct {
  const uint8_t *data;
  size_t size;
} pd_slice;

enum { PD_WIDTHS = 11 };

/* As `Draft` of arena/draft.py has them: presence bits, and widths in the order of `Limits`. */
typedef struct {
  uint32_t presence;
  uint64_t widths[PD_WIDTHS];
} pd_record;

/* The most that a store takes: `Limits` in order, and `Layout.image_bytes`. */
typedef struct {
  uint64_t widths[PD_WIDTHS];
  uint64_t image_bytes;
} pd_limits;

typedef struct {
  pd_slice namespace_;
  uint64_t room;
  uint32_t sample;
} pd_key;

/* A ReserveRequest; times in nanoseconds, -1 where the field is absent. */
typedef struct {
  pd_key key;
  pd_slice owner;
  bool has_widths;
  uint64_t widths[PD_WIDTHS];
  int64_t lease;
  uint32_t expected_readers; /* 1 where absent */
  uint64_t attempt;
  bool has_producer;
  pd_slice instance_id;
  uint64_t epoch;
  int64_t max_wait;
  pd_slice request_digest; /* empty where absent */
} pd_reserve;

/* A PutRequest: by token, or (reserves) as a one-shot Put, whose key is also that of `reserve`. */
typedef struct {
  pd_key key;
  pd_slice token;
  bool reserves;
  pd_reserve reserve;
  pd_slice image;
  pd_record record;
} pd_put;

/* A GetRequest; max_wait in nanoseconds, -1 where absent. */
typedef struct {
  pd_key key;
  uint64_t attempt;
  int64_t max_wait;
  pd_slice reader_id;
  bool consume;
  pd_slice expected_store_epoch;
  pd_slice request_digest; /* empty where absent */
} pd_get;

/* A SessionRequest: its call, not looked into. */
typedef struct {
  uint64_t call_id;
  uint32_t number; /* of the field, 2 to 7 */
  pd_slice call;
} pd_session;

bool pd_scan_record(pd_slice data, const pd_limits *limits, pd_record *out);
bool pd_scan_put(pd_slice data, const pd_limits *limits, pd_put *out);
bool pd_scan_get(pd_slice data, pd_get *out);
bool pd_scan_reserve(pd_slice data, pd_reserve *out);
bool pd_scan_session(pd_slice data, pd_session *out);

/* The next item of a batch (field 1, repeated) from *rest, which is moved on. False at what is no item. */
bool pd_next_item(pd_slice *rest, pd_slice *item);

#endif
