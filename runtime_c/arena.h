/* Arenas, as plans see them. Inside runtime_c only. */
#ifndef UOPC_ARENA_H
#define UOPC_ARENA_H

#include <stddef.h>

struct block; /* the first bytes of memory that nobody uses */

/* Idle blocks of one kind, newest first: those of one size class, or the arenas of one plan. */
struct idle_list {
    struct block *newest;
};

/* A zero-sized lease is not allowed. NULL: over the limit, or no memory. *fresh: never touched yet. */
void *uopc_arena_lease(struct idle_list *home, size_t size, int *fresh);
void uopc_arena_return(struct idle_list *home, void *arena, size_t size);
/* Free the idle arenas of a plan that dies. */
void uopc_arena_free_all(struct idle_list *home);

#endif
