/* pd_handoff_server.parser._scan: what scan.c finds, as Python values. See _scan.pyi. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "scan.h"

static const int64_t ABSENT = -1;

/* -- arguments ----------------------------------------------------------------------------------------------------- */

static bool is_bytes(PyObject *object) {
  if (PyBytes_Check(object)) return true;
  PyErr_Format(PyExc_TypeError, "bytes are needed, not %.100s", Py_TYPE(object)->tp_name);
  return false;
}

static pd_slice slice_of(PyObject *bytes) {
  pd_slice slice = {(const uint8_t *)PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes)};
  return slice;
}

static bool takes(Py_ssize_t given, Py_ssize_t needed) {
  if (given == needed) return true;
  PyErr_Format(PyExc_TypeError, "takes %zd arguments, not %zd", needed, given);
  return false;
}

/* Limits are handed over as packed by Python's struct as "=12Q", which is how they lie in memory. */
static bool limits_of(PyObject *packed, pd_limits *out) {
  if (!is_bytes(packed)) return false;
  if (PyBytes_GET_SIZE(packed) != sizeof *out) {
    PyErr_Format(PyExc_ValueError, "limits are %zu bytes", sizeof *out);
    return false;
  }
  memcpy(out, PyBytes_AS_STRING(packed), sizeof *out);
  return true;
}

/* -- values: each takes over the references it is given, and fails when one of them is NULL ----------------------- */

static PyObject *tuple_of(Py_ssize_t count, PyObject **items) {
  bool whole = true;
  for (Py_ssize_t n = 0; n < count; n++) whole = whole && items[n];
  PyObject *tuple = whole ? PyTuple_New(count) : NULL;
  for (Py_ssize_t n = 0; n < count; n++) {
    if (tuple)
      PyTuple_SET_ITEM(tuple, n, items[n]);
    else
      Py_XDECREF(items[n]);
  }
  return tuple;
}

#define TUPLE(...)                                                            \
  tuple_of(sizeof((PyObject *[]){__VA_ARGS__}) / sizeof(PyObject *), \
           (PyObject *[]){__VA_ARGS__})

static PyObject *none(void) { Py_RETURN_NONE; }

static PyObject *bytes_of(pd_slice slice) {
  return PyBytes_FromStringAndSize((const char *)slice.data, (Py_ssize_t)slice.size);
}

static PyObject *ascii_of(pd_slice slice) {
  return PyUnicode_DecodeASCII((const char *)slice.data, (Py_ssize_t)slice.size, NULL);
}

static PyObject *number_of(uint64_t value) { return PyLong_FromUnsignedLongLong(value); }

static PyObject *time_or_none(int64_t value) { return value == ABSENT ? none() : PyLong_FromLongLong(value); }

static PyObject *time_or_zero(int64_t value) { return PyLong_FromLongLong(value == ABSENT ? 0 : value); }

static PyObject *key_of(const pd_key *key) {
  return TUPLE(ascii_of(key->namespace_), number_of(key->room), number_of(key->sample));
}

static PyObject *widths_of(const uint64_t *widths) {
  PyObject *items[PD_WIDTHS];
  for (int n = 0; n < PD_WIDTHS; n++) items[n] = number_of(widths[n]);
  return tuple_of(PD_WIDTHS, items);
}

static PyObject *reserve_of(const pd_reserve *r) {
  PyObject *producer = r->has_producer ? TUPLE(ascii_of(r->instance_id), number_of(r->epoch)) : none();
  PyObject *widths = r->has_widths ? widths_of(r->widths) : none();
  PyObject *spec = TUPLE(key_of(&r->key), ascii_of(r->owner), number_of(r->attempt), time_or_none(r->lease),
                         number_of(r->expected_readers), producer, widths, bytes_of(r->request_digest));
  return TUPLE(spec, time_or_zero(r->max_wait));
}

static PyObject *put_of(const pd_put *p) {
  return TUPLE(key_of(&p->key), bytes_of(p->token), bytes_of(p->image), number_of(p->record.presence),
               widths_of(p->record.widths), p->reserves ? reserve_of(&p->reserve) : none());
}

static PyObject *get_of(const pd_get *g) {
  return TUPLE(key_of(&g->key), number_of(g->attempt), time_or_zero(g->max_wait), ascii_of(g->reader_id),
               PyBool_FromLong(g->consume), ascii_of(g->expected_store_epoch), bytes_of(g->request_digest));
}

/* -- one request, or all of a batch; None where Python has to look ------------------------------------------------- */

typedef PyObject *(*reading)(pd_slice, const pd_limits *);

static PyObject *read_put(pd_slice data, const pd_limits *limits) {
  pd_put found;
  return pd_scan_put(data, limits, &found) ? put_of(&found) : none();
}

static PyObject *read_get(pd_slice data, const pd_limits *limits) {
  pd_get found;
  (void)limits;
  return pd_scan_get(data, &found) ? get_of(&found) : none();
}

static PyObject *read_reserve(pd_slice data, const pd_limits *limits) {
  pd_reserve found;
  (void)limits;
  return pd_scan_reserve(data, &found) ? reserve_of(&found) : none();
}

static PyObject *read_all(pd_slice data, const pd_limits *limits, reading read) {
  PyObject *list = PyList_New(0);
  while (list && data.size) {
    pd_slice item;
    PyObject *found = pd_next_item(&data, &item) ? read(item, limits) : none();
    if (found && found != Py_None && PyList_Append(list, found) == 0) {
      Py_DECREF(found);
      continue;
    }
    bool odd = found == Py_None;
    Py_XDECREF(found);
    Py_DECREF(list);
    return odd ? none() : NULL;
  }
  return list;
}

static PyObject *with_limits(PyObject *const *args, Py_ssize_t given, bool batch) {
  pd_limits limits;
  if (!takes(given, 2) || !is_bytes(args[0]) || !limits_of(args[1], &limits)) return NULL;
  return batch ? read_all(slice_of(args[0]), &limits, read_put) : read_put(slice_of(args[0]), &limits);
}

static PyObject *scan_put(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  (void)self;
  return with_limits(args, given, false);
}

static PyObject *scan_put_all(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  (void)self;
  return with_limits(args, given, true);
}

static PyObject *scan_get(PyObject *self, PyObject *data) {
  (void)self;
  return is_bytes(data) ? read_get(slice_of(data), NULL) : NULL;
}

static PyObject *scan_get_all(PyObject *self, PyObject *data) {
  (void)self;
  return is_bytes(data) ? read_all(slice_of(data), NULL, read_get) : NULL;
}

static PyObject *scan_reserve(PyObject *self, PyObject *data) {
  (void)self;
  return is_bytes(data) ? read_reserve(slice_of(data), NULL) : NULL;
}

static PyObject *scan_reserve_all(PyObject *self, PyObject *data) {
  (void)self;
  return is_bytes(data) ? read_all(slice_of(data), NULL, read_reserve) : NULL;
}

static PyObject *scan_session(PyObject *self, PyObject *data) {
  pd_session found;
  (void)self;
  if (!is_bytes(data)) return NULL;
  if (!pd_scan_session(slice_of(data), &found)) return none();
  return TUPLE(number_of(found.call_id), number_of(found.number), bytes_of(found.call));
}

/* -- answers ------------------------------------------------------------------------------------------------------- */

enum { MAX_VARINT = 10 };

static uint8_t *write_varint(uint8_t *at, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *at++ = (uint8_t)(value | 0x80);
  *at++ = (uint8_t)value;
  return at;
}

static const unsigned SECOND = 1000000000;

/* Splits nanoseconds into seconds and the rest. Clocks may be set to years whose nanoseconds need more than 64 bits, or
 * to years before the epoch, which are taken for it. */
static bool split_wall(PyObject *wall, unsigned long long *seconds, unsigned long long *nanos) {
  unsigned long long value = PyLong_AsUnsignedLongLong(wall);
  if (!PyErr_Occurred()) {
    *seconds = value / SECOND;
    *nanos = value % SECOND;
    return true;
  }
  if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
  PyErr_Clear();
  PyObject *second = PyLong_FromUnsignedLong(SECOND);
  int late = second ? PyObject_RichCompareBool(wall, second, Py_GT) : -1;
  if (late == 0) *seconds = *nanos = 0;
  if (late <= 0) {
    Py_XDECREF(second);
    return late == 0;
  }
  PyObject *pair = PyNumber_Divmod(wall, second);
  if (pair) {
    *seconds = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 0));
    *nanos = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 1));
  }
  Py_DECREF(second);
  Py_XDECREF(pair);
  return !PyErr_Occurred();
}

/* A Timestamp of nanoseconds since the Unix epoch, as the field of this tag. */
static PyObject *scan_stamp(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  uint8_t out[2 + 2 * (1 + MAX_VARINT)], *at = out + 2;
  (void)self;
  if (!takes(given, 2)) return NULL;
  unsigned long tag = PyLong_AsUnsignedLong(args[0]);
  if (PyErr_Occurred()) return NULL;
  unsigned long long seconds = 0, nanos = 0;
  if (!split_wall(args[1], &seconds, &nanos)) return NULL;
  if (seconds) {
    *at++ = 0x08;
    at = write_varint(at, seconds);
  }
  if (nanos) {
    *at++ = 0x10;
    at = write_varint(at, nanos);
  }
  out[0] = (uint8_t)tag;
  out[1] = (uint8_t)(at - out - 2);
  return PyBytes_FromStringAndSize((const char *)out, at - out);
}

/* A SessionResponse: the call's id, and the field of this number with the serialized answer. */
static PyObject *scan_answer(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  uint8_t head[2 + 2 * MAX_VARINT], *at = head;
  (void)self;
  if (!takes(given, 3) || !is_bytes(args[2])) return NULL;
  unsigned long long call_id = PyLong_AsUnsignedLongLong(args[0]);
  if (PyErr_Occurred()) return NULL;
  unsigned long number = PyLong_AsUnsignedLong(args[1]);
  if (PyErr_Occurred()) return NULL;
  pd_slice answer = slice_of(args[2]);
  *at++ = 0x08;
  at = write_varint(at, call_id);
  *at++ = (uint8_t)(number << 3 | 2);
  at = write_varint(at, answer.size);
  PyObject *frame = PyBytes_FromStringAndSize(NULL, (at - head) + (Py_ssize_t)answer.size);
  if (!frame) return NULL;
  memcpy(PyBytes_AS_STRING(frame), head, (size_t)(at - head));
  memcpy(PyBytes_AS_STRING(frame) + (at - head), answer.data, answer.size);
  return frame;
}

/* -- the module ---------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"put", (PyCFunction)(void (*)(void))scan_put, METH_FASTCALL, NULL},
    {"put_all", (PyCFunction)(void (*)(void))scan_put_all, METH_FASTCALL, NULL},
    {"get", scan_get, METH_O, NULL},
    {"get_all", scan_get_all, METH_O, NULL},
    {"reserve", scan_reserve, METH_O, NULL},
    {"reserve_all", scan_reserve_all, METH_O, NULL},
    {"session", scan_session, METH_O, NULL},
    {"stamp", (PyCFunction)(void (*)(void))scan_stamp, METH_FASTCALL, NULL},
    {"answer", (PyCFunction)(void (*)(void))scan_answer, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) { return PyModule_AddStringConstant(module, "SCHEMA", PD_SCHEMA); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_scan",
    .m_doc = "Canonical requests as Python values; None for whatever else.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__scan(void) { return PyModuleDef_Init(&definition); }
