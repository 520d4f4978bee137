/* dh_init: bad configurations are refused with the reason, a good one starts once. */
#include "deepheap.h"

#include <stdio.h>
#include <string.h>

static int failed(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(void) {
    const char *text;
    void *ptr;

    if (dh_init("nonsense:1") != DH_ECONF) {
        return failed("an unknown key is accepted");
    }
    text = dh_strerror(DH_ECONF);
    if (text == NULL || strstr(text, "nonsense") == NULL) {
        return failed("the text does not name the unknown key");
    }
    if (dh_init("ram:64M,store:/nonexistent/folder") != DH_ESTORE) {
        return failed("a missing store is not refused as such");
    }
    if (strstr(dh_strerror(DH_ESTORE), "/nonexistent/folder") == NULL) {
        return failed("the text does not name the missing store");
    }
    if (dh_init("ram:64M,store:.") != 0) {
        return failed("a good configuration is refused after a bad one");
    }
    if (dh_init("ram:64M,store:.") != DH_ESTARTED) {
        return failed("a second start is not refused");
    }
    ptr = dh_malloc(1000);
    if (ptr == NULL) {
        return failed("no memory after the start");
    }
    memset(ptr, 1, 1000);
    dh_free(ptr);
    puts("started once");
    return 0;
}
