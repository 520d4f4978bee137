/* Sanitized: what a build with AddressSanitizer does. Prints its arguments; with `wrong` it uses
 * memory after it was freed, which must be found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    char *text = malloc(1 << 20);
    if (!text) return 1;
    strcpy(text, "sanitized");
    if (argc == 2 && strcmp(argv[1], "wrong") == 0) {
        free(text);
        return text[argc];
    }
    for (int i = 1; i < argc; i++) printf("%s, ", argv[i]);
    puts(text);
    free(text);
    return 0;
}
