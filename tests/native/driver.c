/* Runs every function of scan.c over inputs from stdin, each a uint32 of its size in the machine's byte order and so
 * many bytes, and answers each by one byte on stdout: which functions understood it. To be built with sanitizers, which
 * end it at the first access outside an input and the first undefined behaviour. With `before` or `behind` as argument
 * it does the first of these itself, to show that they do. */
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scan.h"

enum { RECORD = 1, PUT = 2, GET = 4, RESERVE = 8, SESSION = 16, PUTS = 32, GETS = 64, RESERVES = 128 };
enum { GUARD = 16, MOST = 1 << 20 };

static const pd_limits NONE = {
    {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
     UINT64_MAX},
    UINT64_MAX};
static const pd_limits NARROW = {{2, 3, 2, 2, 2, 3, 12, 16, 0, 16}, 200};

static volatile uint64_t sink;

static void check(bool holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "%s\n", what);
  abort();
}

/* A result is read as its users read it, from an input that holds it whole. */
static void touch(pd_slice slice, pd_slice whole) {
  if (!slice.size) return;
  check(slice.data >= whole.data && slice.data + slice.size <= whole.data + whole.size, "a slice lies outside");
  for (size_t n = 0; n < slice.size; n++) sink += slice.data[n];
}

static void touch_key(const pd_key *key, pd_slice whole) {
  touch(key->namespace_, whole);
  sink += key->room + key->sample;
}

static void touch_record(const pd_record *record, const pd_limits *limits) {
  check(record->presence < 256, "presence has 8 bits");
  for (int n = 0; n < PD_WIDTHS; n++) check(record->widths[n] <= limits->widths[n], "a width is over its limit");
}

static void touch_reserve(const pd_reserve *reserve, pd_slice whole) {
  touch_key(&reserve->key, whole);
  touch(reserve->owner, whole);
  touch(reserve->instance_id, whole);
  touch(reserve->request_digest, whole);
  for (int n = 0; n < PD_WIDTHS; n++) sink += reserve->widths[n];
  check(reserve->lease >= -1 && reserve->max_wait >= -1, "a time is negative");
  check(reserve->has_widths + reserve->has_producer <= 2, "unset");
  sink += reserve->expected_readers + reserve->attempt + reserve->epoch;
}

static bool record(pd_slice data, const pd_limits *limits) {
  pd_record out;
  memset(&out, 0xaa, sizeof out);
  if (!pd_scan_record(data, limits, &out)) return false;
  touch_record(&out, limits);
  return true;
}

static bool put(pd_slice data, const pd_limits *limits) {
  pd_put out;
  memset(&out, 0xaa, sizeof out);
  if (!pd_scan_put(data, limits, &out)) return false;
  touch_key(&out.key, data);
  touch(out.token, data);
  touch(out.image, data);
  touch_record(&out.record, limits);
  if (out.reserves) touch_reserve(&out.reserve, data);
  return true;
}

static bool get(pd_slice data, const pd_limits *limits) {
  (void)limits;
  pd_get out;
  memset(&out, 0xaa, sizeof out);
  if (!pd_scan_get(data, &out)) return false;
  touch_key(&out.key, data);
  touch(out.reader_id, data);
  touch(out.expected_store_epoch, data);
  touch(out.request_digest, data);
  check(out.max_wait >= -1, "a time is negative");
  sink += out.attempt + out.consume;
  return true;
}

static bool reserve(pd_slice data, const pd_limits *limits) {
  (void)limits;
  pd_reserve out;
  memset(&out, 0xaa, sizeof out);
  if (!pd_scan_reserve(data, &out)) return false;
  touch_reserve(&out, data);
  return true;
}

static bool session(pd_slice data) {
  pd_session out;
  memset(&out, 0xaa, sizeof out);
  if (!pd_scan_session(data, &out)) return false;
  touch(out.call, data);
  sink += out.call_id;
  check(out.number >= 2 && out.number <= 7, "no call has this number");
  return true;
}

static bool all(pd_slice rest, const pd_limits *limits, bool (*one)(pd_slice, const pd_limits *)) {
  pd_slice whole = rest, item;
  while (rest.size) {
    size_t before = rest.size;
    if (!pd_next_item(&rest, &item)) return false;
    check(rest.size < before, "a batch does not end");
    touch(rest, whole);
    touch(item, whole);
    if (!one(item, limits)) return false;
  }
  return true;
}

static int understood(pd_slice data, const pd_limits *limits) {
  return record(data, limits) * RECORD | put(data, limits) * PUT | get(data, limits) * GET |
         reserve(data, limits) * RESERVE | session(data) * SESSION | all(data, limits, put) * PUTS |
         all(data, limits, get) * GETS | all(data, limits, reserve) * RESERVES;
}

int main(int argc, char **argv) {
  const char *astray = argc > 1 ? argv[1] : "";
  uint32_t size;
  while (fread(&size, sizeof size, 1, stdin) == 1) {
    check(size <= MOST, "an input is too large");
    /* Of exactly this size, so that one byte further is found; not even an empty one may be read from. */
    uint8_t *memory = malloc(GUARD + (size_t)size);
    check(memory && fread(memory + GUARD, 1, size, stdin) == size, "an input is cut off");
    ASAN_POISON_MEMORY_REGION(memory, GUARD);
    pd_slice data = {memory + GUARD, size};
    if (!strcmp(astray, "before")) sink += data.data[-1];
    if (!strcmp(astray, "behind")) sink += data.data[size];
    int found = understood(data, &NONE);
    check((understood(data, &NARROW) & ~found) == 0, "limits make it understand more");
    ASAN_UNPOISON_MEMORY_REGION(memory, GUARD);
    free(memory);
    putchar(found);
  }
  check(feof(stdin) && fflush(stdout) == 0, "cannot read or write");
  return 0;
}
