/*
 * calls.c: brings the C library calls of the loaded objects to deepheap's wrappers.
 *
 * The kernel cannot fetch memory that is on the SSD: read(2) into it answers EFAULT. Under
 * `deepheap run` the preload library stands in front of libc and sees to that. A Python that was
 * started plainly has bound its calls to libc already. So the library is loaded, and the slots of
 * the global offset tables that lead to libc's read, write and so on are made to lead to its
 * functions.
 *
 * What is wrapped: calls that move bytes, and those by which a program could take the library's
 * signal or descriptors away. Not memory: malloc and mmap stay libc's.
 *
 * Not reached: functions that a program looks up by name (ctypes, cffi), and system calls made
 * without libc.
 *
 * Guarantees: a slot changes from one function to the other by one store; a table that was
 * read-only is so again. An object that is loaded later is done when the first symbol is looked up
 * in it, as Python's import does at once.
 *
 * Threads: any. The lock is held across forks.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul

/* In the order of strcmp. */
static const char *const NAMES[] = {
    "_Fork", "__fread_chk", "__fread_unlocked_chk", "__pread64_chk", "__pread_chk", "__read_chk",
    "__recv_chk", "__recvfrom_chk", "__sysv_signal", "bsd_signal", "close", "close_range",
    "closefrom", "dup", "dup2", "dup3", "epoll_pwait", "epoll_pwait2", "fcntl", "fcntl64", "fputs",
    "fputs_unlocked", "fread", "fread_unlocked", "fstat", "fstat64", "fwrite", "fwrite_unlocked",
    "getentropy", "getrandom", "ioctl", "ppoll", "pread", "pread64", "preadv", "preadv2",
    "preadv64", "preadv64v2", "process_vm_readv", "process_vm_writev", "pselect",
    "pthread_attr_setsigmask_np", "pthread_create", "pthread_sigmask", "puts", "pwrite", "pwrite64",
    "pwritev", "pwritev2", "pwritev64", "pwritev64v2", "read", "readv", "recv", "recvfrom",
    "recvmmsg", "recvmsg", "send", "sendmmsg", "sendmsg", "sendto", "setbuf", "setbuffer",
    "setsockopt", "setvbuf", "sigaction", "sigaltstack", "sigblock", "sighold", "sigignore",
    "signal", "signalfd", "sigprocmask", "sigset", "sigsetmask", "sigsuspend", "sigtimedwait",
    "sigwait", "sigwaitinfo", "ssignal", "sysv_signal", "thrd_create", "vmsplice", "write",
    "writev",
};
#define NAME_COUNT (sizeof NAMES / sizeof NAMES[0])

/* What a slot of that name becomes; null where the library has no such function. */
static void *wrappers[NAME_COUNT];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Where the objects begin that are done already. */
static struct {
    uintptr_t *bases;
    size_t count, room;
    unsigned long long added, removed; /* the loader's counts when they were done */
} done;

static void *looked_up(void *handle, const char *name);

static int compare(const void *name, const void *entry) {
    return strcmp(name, *(const char *const *)entry);
}

static void *wrapper_of(const char *name) {
    if (strcmp(name, "dlsym") == 0) {
        return (void *)looked_up;
    }
    const char *const *found =
        bsearch(name, NAMES, NAME_COUNT, sizeof NAMES[0], compare);
    return found == NULL ? NULL : wrappers[found - NAMES];
}

static int is_done(uintptr_t base) {
    for (size_t i = 0; i < done.count; i++) {
        if (done.bases[i] == base) {
            return 1;
        }
    }
    return 0;
}

/* Remembers an object; without memory for that it is looked at again, which does no harm. */
static void remember(uintptr_t base) {
    if (done.count == done.room) {
        const size_t room = done.room == 0 ? 256 : 2 * done.room;
        uintptr_t *bases = realloc(done.bases, room * sizeof *bases);
        if (bases == NULL) {
            return;
        }
        done.bases = bases;
        done.room = room;
    }
    done.bases[done.count++] = base;
}

/* One loaded object, as far as its slots are concerned. */
struct object {
    uintptr_t base;
    uintptr_t sealed, sealed_end; /* pages that the loader has made read-only */
    const ElfW(Sym) *symbols;
    const char *texts;
};

/* The addresses of the tables are relative in some objects and absolute in others. */
static uintptr_t absolute(const struct object *object, uintptr_t address) {
    return address < object->base ? object->base + address : address;
}

static int set_slot(const struct object *object, void **slot, void *wrapper) {
    if (*slot == wrapper) {
        return 0;
    }
    const uintptr_t page = (uintptr_t)slot & ~(PAGE - 1);
    const int is_sealed = page >= object->sealed && page < object->sealed_end;
    if (is_sealed && mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE) != 0) {
        return 0;
    }
    __atomic_store_n(slot, wrapper, __ATOMIC_RELEASE);
    if (is_sealed) {
        mprotect((void *)page, PAGE, PROT_READ);
    }
    return 1;
}

static int set_slots(const struct object *object, const ElfW(Rela) *entries, size_t bytes) {
    int changed = 0;
    for (size_t i = 0; i < bytes / sizeof *entries; i++) {
        const unsigned long kind = ELF64_R_TYPE(entries[i].r_info);
        const int is_slot = kind == R_X86_64_JUMP_SLOT || kind == R_X86_64_GLOB_DAT ||
                            (kind == R_X86_64_64 && entries[i].r_addend == 0);
        if (!is_slot) {
            continue;
        }
        const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(entries[i].r_info)];
        if (symbol->st_shndx != SHN_UNDEF || symbol->st_name == 0) {
            continue;
        }
        void *wrapper = wrapper_of(object->texts + symbol->st_name);
        if (wrapper != NULL) {
            changed += set_slot(object, (void **)(object->base + entries[i].r_offset), wrapper);
        }
    }
    return changed;
}

static int wrap_object(const struct dl_phdr_info *info) {
    struct object object = {.base = info->dlpi_addr};
    const ElfW(Dyn) *entry = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_DYNAMIC) {
            entry = (const ElfW(Dyn) *)(object.base + part->p_vaddr);
        } else if (part->p_type == PT_GNU_RELRO) {
            /* As the loader rounds it. */
            object.sealed = (object.base + part->p_vaddr) & ~(PAGE - 1);
            object.sealed_end = (object.base + part->p_vaddr + part->p_memsz) & ~(PAGE - 1);
        }
    }
    uintptr_t calls = 0, others = 0;
    size_t calls_bytes = 0, others_bytes = 0;
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
            case DT_SYMTAB:
                object.symbols = (const void *)absolute(&object, entry->d_un.d_ptr);
                break;
            case DT_STRTAB:
                object.texts = (const void *)absolute(&object, entry->d_un.d_ptr);
                break;
            case DT_JMPREL: calls = absolute(&object, entry->d_un.d_ptr); break;
            case DT_PLTRELSZ: calls_bytes = entry->d_un.d_val; break;
            case DT_RELA: others = absolute(&object, entry->d_un.d_ptr); break;
            case DT_RELASZ: others_bytes = entry->d_un.d_val; break;
            default: break;
        }
    }
    if (object.symbols == NULL || object.texts == NULL) {
        return 0;
    }
    return (calls == 0 ? 0 : set_slots(&object, (const void *)calls, calls_bytes)) +
           (others == 0 ? 0 : set_slots(&object, (const void *)others, others_bytes));
}

/* Whether an address lies in the object. */
static int holds(const struct dl_phdr_info *info, const void *address) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        const uintptr_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (uintptr_t)address - start < part->p_memsz) {
            return 1;
        }
    }
    return 0;
}

/* The kernel's, libc and its loader call themselves; so does the library. */
static int is_exempt(const struct dl_phdr_info *info) {
    const char *name = strrchr(info->dlpi_name, '/');
    name = name == NULL ? info->dlpi_name : name + 1;
    return strncmp(name, "libc.so", 7) == 0 || strncmp(name, "ld-linux", 8) == 0 ||
           strncmp(name, "linux-vdso", 10) == 0 || holds(info, wrapper_of("read"));
}

static int visit(struct dl_phdr_info *info, size_t size, void *changed) {
    (void)size;
    if (info->dlpi_subs != done.removed) {
        /* An address may have another object now. */
        done.removed = info->dlpi_subs;
        done.count = 0;
    }
    done.added = info->dlpi_adds;
    if (!is_done(info->dlpi_addr)) {
        if (!is_exempt(info)) {
            *(int *)changed += wrap_object(info);
        }
        remember(info->dlpi_addr);
    }
    return 0;
}

static int is_news(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    return info->dlpi_adds != done.added || info->dlpi_subs != done.removed ? 1 : 2;
}

static int wrap_new_objects(void) {
    int changed = 0;
    pthread_mutex_lock(&lock);
    /* The first object answers for all: the counts are the loader's. */
    if (dl_iterate_phdr(is_news, NULL) == 1) {
        dl_iterate_phdr(visit, &changed);
    }
    pthread_mutex_unlock(&lock);
    return changed;
}

/*
 * dlsym, by which a program gets at what it has just loaded. The two handles that mean "as seen
 * from the caller" must see the caller, so libc's function is reached by a jump.
 */
__attribute__((visibility("hidden"))) void *(*deepheap_libc_dlsym)(void *, const char *);
__attribute__((visibility("hidden"))) void deepheap_look_around(void);

void deepheap_look_around(void) {
    wrap_new_objects();
}

/* RTLD_NEXT is -1 and RTLD_DEFAULT 0; the stack is aligned for the call. */
__attribute__((naked, noinline)) static void *looked_up(__attribute__((unused)) void *handle,
                                                        __attribute__((unused)) const char *name) {
    __asm__("leaq 1(%rdi), %rax\n\t"
            "cmpq $1, %rax\n\t"
            "jbe 1f\n\t"
            "pushq %rdi\n\t"
            "pushq %rsi\n\t"
            "subq $8, %rsp\n\t"
            "call deepheap_look_around\n\t"
            "addq $8, %rsp\n\t"
            "popq %rsi\n\t"
            "popq %rdi\n"
            "1:\n\t"
            "jmp *deepheap_libc_dlsym(%rip)");
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&lock);
}

int wrap_calls(void *handle) {
    static int is_ready;
    if (!is_ready) {
        for (size_t i = 0; i < NAME_COUNT; i++) {
            wrappers[i] = dlsym(handle, NAMES[i]);
        }
        deepheap_libc_dlsym = dlsym;
        if (wrapper_of("read") == NULL ||
            pthread_atfork(before_fork, after_fork, after_fork) != 0) {
            return -1;
        }
        is_ready = 1;
    }
    return wrap_new_objects();
}
