/* The least a C test needs: CHECK(condition) that says where it failed, and a table of tests. */
#ifndef UOPC_CHECK_H
#define UOPC_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                  \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

struct test {
    const char *name;
    void (*run)(void);
};

/* Run the tests whose name is among the arguments, or all. */
static inline int run_tests(const struct test *tests, int n, int argc, char **argv) {
    for (int i = 0; i < n; i++) {
        int wanted = argc < 2;
        for (int a = 1; a < argc; a++) wanted |= strcmp(argv[a], tests[i].name) == 0;
        if (!wanted) continue;
        fprintf(stderr, "%s\n", tests[i].name);
        tests[i].run();
    }
    return 0;
}

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

#endif
