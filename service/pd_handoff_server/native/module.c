/* The binding of scan.c to Python: pd_handoff_server.native._scan. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "scan.h"

static int scan_exec(PyObject *module) {
    return PyModule_AddIntConstant(module, "PLACEHOLDER", pd_scan_placeholder());
}

static PyModuleDef_Slot scan_slots[] = {
    {Py_mod_exec, (void *)scan_exec},
    {0, NULL},
};

static struct PyModuleDef scan_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_scan",
    .m_doc = "Reads requests from their wire form.",
    .m_size = 0,
    .m_slots = scan_slots,
};

PyMODINIT_FUNC PyInit__scan(void) { return PyModuleDef_Init(&scan_module); }
