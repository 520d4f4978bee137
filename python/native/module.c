/*
 * module.c: what of the package must be C: finding the library, and NumPy's memory handler.
 *
 * The handler (NEP 49) gives arrays from a number of bytes on memory of deepheap, and smaller ones
 * that of libc. It tells them apart by their address, so one may grow into the other.
 *
 * Threads: the handler's functions run in any thread, with or without the GIL.
 */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <Python.h>

#include <dlfcn.h>
#include <malloc.h>
#include <numpy/arrayobject.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

/* The library, once it is open. */
static struct {
    void *handle;
    int was_there; /* in the process from its start: `deepheap run` */
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void (*free)(void *);
    size_t (*usable_size)(const void *);
} library;

static int is_ours(const void *memory) {
    return library.usable_size(memory) != 0;
}

static size_t least(const void *handler) {
    return *(const size_t *)handler;
}

static void *allocate(void *handler, size_t size) {
    return size >= least(handler) ? library.malloc(size) : malloc(size);
}

static void *allocate_zeros(void *handler, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        return NULL;
    }
    return bytes >= least(handler) ? library.calloc(count, size) : calloc(count, size);
}

static void release(void *handler, void *memory, size_t size) {
    (void)handler;
    (void)size;
    if (memory != NULL && is_ours(memory)) {
        library.free(memory);
    } else {
        free(memory);
    }
}

static void *reallocate(void *handler, void *memory, size_t size) {
    if (memory == NULL) {
        return allocate(handler, size);
    }
    if (is_ours(memory)) {
        return library.realloc(memory, size == 0 ? 1 : size);
    }
    if (size < least(handler)) {
        return realloc(memory, size);
    }
    void *moved = library.malloc(size);
    if (moved != NULL) {
        const size_t usable = malloc_usable_size(memory);
        memcpy(moved, memory, usable < size ? usable : size);
        free(memory);
    }
    return moved;
}

/* What the capsule holds: NumPy's record, and from how many bytes on memory is deepheap's. */
struct handler {
    PyDataMem_Handler numpy;
    size_t least;
};

static void drop_handler(PyObject *capsule) {
    free(PyCapsule_GetPointer(capsule, "mem_handler"));
}

static PyObject *make_handler(PyObject *module, PyObject *argument) {
    (void)module;
    const size_t bytes = PyLong_AsSize_t(argument);
    if (bytes == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (library.handle == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the library is not open");
        return NULL;
    }
    struct handler *handler = calloc(1, sizeof *handler);
    if (handler == NULL) {
        return PyErr_NoMemory();
    }
    handler->least = bytes;
    strcpy(handler->numpy.name, "deepheap");
    handler->numpy.version = 1;
    handler->numpy.allocator = (PyDataMemAllocator){
        .ctx = &handler->least,
        .malloc = allocate,
        .calloc = allocate_zeros,
        .realloc = reallocate,
        .free = release,
    };
    PyObject *capsule = PyCapsule_New(handler, "mem_handler", drop_handler);
    if (capsule == NULL) {
        free(handler);
    }
    return capsule;
}

static PyObject *set_handler(PyObject *module, PyObject *handler) {
    (void)module;
    return PyDataMem_SetHandler(handler == Py_None ? NULL : handler);
}

/* The function of that name; NULL and an exception if the library has none. */
static void *function(const char *name) {
    void *found = dlsym(library.handle, name);
    if (found == NULL) {
        PyErr_Format(PyExc_ImportError, "the library of deepheap has no function %s", name);
    }
    return found;
}

static PyObject *open_library(PyObject *module, PyObject *path) {
    (void)module;
    if (library.handle == NULL) {
        const char *text = PyUnicode_AsUTF8(path);
        if (text == NULL) {
            return NULL;
        }
        library.was_there = dlsym(RTLD_DEFAULT, "dh_malloc") != NULL;
        /* Deeply bound the library calls its own functions, as it does when it is preloaded. */
        library.handle = library.was_there ? dlopen(NULL, RTLD_NOW)
                                           : dlopen(text, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        if (library.handle == NULL) {
            PyErr_SetString(PyExc_ImportError, dlerror());
            return NULL;
        }
        library.malloc = function("dh_malloc");
        library.calloc = function("dh_calloc");
        library.realloc = function("dh_realloc");
        library.free = function("dh_free");
        library.usable_size = function("dh_usable_size");
        if (PyErr_Occurred()) {
            library.handle = NULL;
            return NULL;
        }
    }
    return Py_BuildValue("(NN)", PyLong_FromVoidPtr(library.handle),
                         PyBool_FromLong(library.was_there));
}

static PyObject *wrap(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    const int changed = library.handle == NULL ? -1 : wrap_calls(library.handle);
    if (changed < 0) {
        PyErr_SetString(PyExc_RuntimeError, "the C library's calls cannot be wrapped");
        return NULL;
    }
    return PyLong_FromLong(changed);
}

static PyMethodDef methods[] = {
    {"open_library", open_library, METH_O,
     "Opens the library, once; answers its handle, and whether it was in the process before."},
    {"wrap_calls", wrap, METH_NOARGS,
     "Brings the C library calls of all loaded objects to the library; answers how many slots."},
    {"make_handler", make_handler, METH_O,
     "A memory handler for NumPy: arrays of at least so many bytes are deepheap's."},
    {"set_handler", set_handler, METH_O,
     "Sets NumPy's memory handler, or with None its own; answers the one before."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "deepheap._native",
    .m_doc = "The parts of deepheap that must be C.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    import_array();
    return PyModule_Create(&definition);
}
