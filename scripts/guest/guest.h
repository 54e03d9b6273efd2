// What the programs of the guest share. Each is a static C program, so that it runs in any user space.
#ifndef GUEST_H
#define GUEST_H

#include <stdnoreturn.h>

// Where the folders of the host are mounted from which, and to which, files are copied for compilers. See compile.c.
#define HOST "/run/host"
#define REQUESTS HOST "/requests"
// Their list, a line for each: TAG PATH.
#define SCRATCH "/run/scratch"
// What compile.c makes. Programs that the host runs for the guest are links to it.
#define COMPILE "/run/compile"

// Takes commands from the host, for ever. See agent.c.
noreturn void agent(void);

#endif
