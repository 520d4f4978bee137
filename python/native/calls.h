/* calls.h: brings the C library calls of the loaded objects to deepheap's wrappers. */
#ifndef DEEPHEAP_PYTHON_CALLS_H
#define DEEPHEAP_PYTHON_CALLS_H

/*
 * Brings calls of every loaded object to the wrappers of the library `handle`, and those of objects
 * that are loaded later. Returns how many slots were changed, or -1 if that cannot be done. Calling
 * it again costs little; it looks at new objects only.
 */
int wrap_calls(void *handle);

#endif
