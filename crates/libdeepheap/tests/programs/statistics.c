/* dh_stats for older and newer callers, dh_stats_json for short and long buffers. */
#include "deepheap.h"

#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    struct dh_stats stats;
    unsigned char longer[sizeof stats + 64];
    unsigned char shorter[24];
    char cut[16];
    char *whole;
    size_t length;
    void *ptr = dh_malloc(1 << 20);

    check(ptr != NULL, "no memory");
    memset(ptr, 1, 1 << 20);
    check(dh_stats(&stats, sizeof stats) == 0, "dh_stats fails");
    check(stats.version == DH_STATS_VERSION, "another version than the header's");
    check(stats.size == sizeof stats, "another size than the header's");
    check(stats.budget_bytes == 64u << 20, "another budget than the configured");
    check(stats.allocated_bytes >= 1 << 20, "an allocation is not counted");

    memset(longer, 0xEE, sizeof longer);
    check(dh_stats((void *)longer, sizeof longer) == 0, "a newer caller is refused");
    check(longer[sizeof stats] == 0 && longer[sizeof longer - 1] == 0, "new fields are not zero");

    memset(shorter, 0xEE, sizeof shorter);
    check(dh_stats((void *)shorter, 16) == 0, "an older caller is refused");
    check(shorter[15] != 0xEE && shorter[16] == 0xEE, "more or less was written than stated");

    check(dh_stats(NULL, sizeof stats) == DH_EINVAL, "NULL is accepted");
    check(dh_stats(&stats, 4) == DH_EINVAL, "a size without room for the version is accepted");

    length = dh_stats_json(NULL, 0);
    check(length > 20, "the JSON is too short to be true");
    memset(cut, 'x', sizeof cut);
    check(dh_stats_json(cut, 10) >= 20, "a cut text does not tell its length");
    check(cut[0] == '{' && cut[9] == 0 && cut[10] == 'x', "the text is not cut where stated");
    /* Numbers grow from call to call: leave some room. */
    whole = malloc(length + 1000);
    length = dh_stats_json(whole, length + 1000);
    check(strlen(whole) == length && whole[length - 1] == '}', "the JSON is not whole");
    free(whole);
    dh_free(ptr);
    puts("statistics fit");
    return 0;
}
