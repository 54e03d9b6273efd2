// The first process of a guest: loads what the kernel has as modules, goes over to the real root, mounts what a program
// expects of a Linux, and hands over to the agent.
//
// /config, in the initial file system, says what depends on the run. A line is a verb and its argument:
//   share TAG PATH      a folder of the host, read-only, where the host has it
//   scratch TAG PATH    a folder in memory where the host has one, too; the host's is at /run/host/TAG
//   requests TAG        where compile.c leaves what it wants, at /run/host/requests
//   tool NAME           a program that the host runs for us
//
// There is nobody to report to before the agent runs: what fails is said on the console, and the machine is powered off.
#define _GNU_SOURCE
#include "guest.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static noreturn void fail(const char *what, const char *whose) {
    printf("init: %s %s: %s\n", what, whose, strerror(errno));
    fflush(stdout);
    reboot(RB_POWER_OFF);
    _exit(1);
}

static void make_folders(const char *path) {
    char part[4096];
    for (size_t length = 1; length <= strlen(path); length++)
        if (path[length] == '/' || path[length] == 0) {
            snprintf(part, sizeof part, "%.*s", (int)length, path);
            mkdir(part, 0755);
        }
}

static void must_mount(const char *source, const char *path, const char *type, unsigned long flags, const char *options) {
    make_folders(path);
    if (mount(source, path, type, flags, options)) fail("mount", path);
}

static void load_modules(void) {
    struct dirent **modules;
    // In the order of their names.
    int count = scandir("/modules", &modules, NULL, alphasort);
    for (int index = 0; index < count; index++) {
        const char *name = modules[index]->d_name;
        if (name[0] == '.') continue;
        char path[512];
        snprintf(path, sizeof path, "/modules/%s", name);
        int module = open(path, O_RDONLY | O_CLOEXEC);
        if (module < 0 || (syscall(SYS_finit_module, module, "", 0) && errno != EEXIST)) fail("load", name);
        close(module);
    }
}

static void enter_root(void) {
    for (int tries = 0; access("/dev/vda", F_OK) && tries < 500; tries++) usleep(10000);
    must_mount("/dev/vda", "/new", "ext4", 0, "");
    must_mount("/dev", "/new/dev", NULL, MS_MOVE, NULL);
    if (chdir("/new") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/")) fail("enter", "the root");
}

static void share(const char *tag, const char *path, unsigned long flags, const char *caching) {
    char options[128];
    snprintf(options, sizeof options, "trans=virtio,version=9p2000.L,msize=262144,%s", caching);
    must_mount(tag, path, "9p", flags, options);
}

static void install_tool(const char *name) {
    char path[512];
    // Where every PATH has it.
    snprintf(path, sizeof path, "/usr/bin/%s", name);
    unlink(path);
    if (symlink(COMPILE, path)) fail("link", name);
}

static void copy(const char *from, const char *to) {
    static char bytes[1 << 16];
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    if (in < 0 || out < 0) fail("copy", from);
    for (ssize_t count; (count = read(in, bytes, sizeof bytes)) > 0;)
        if (write(out, bytes, count) != count) fail("copy", from);
    close(in), close(out);
}

static void apply(FILE *config) {
    char line[4200], verb[16], tag[64], path[4096];
    FILE *scratch = fopen(SCRATCH, "w");
    if (!scratch) fail("write", SCRATCH);
    while (fgets(line, sizeof line, config)) {
        line[strcspn(line, "\n")] = 0;
        int fields = sscanf(line, "%15s %63s %4095[^\n]", verb, tag, path);
        if (fields == 3 && !strcmp(verb, "share")) {
            // The host changes nothing there while we run.
            share(tag, path, MS_RDONLY, "cache=loose");
        } else if (fields == 3 && !strcmp(verb, "scratch")) {
            must_mount("tmpfs", path, "tmpfs", 0, "mode=1777");
            char there[128];
            snprintf(there, sizeof there, HOST "/%s", tag);
            share(tag, there, 0, "cache=none");
            fprintf(scratch, "%s %s\n", tag, path);
        } else if (fields == 2 && !strcmp(verb, "requests")) {
            share(tag, REQUESTS, 0, "cache=none");
        } else if (fields == 2 && !strcmp(verb, "tool")) {
            install_tool(tag);
        } else {
            errno = EINVAL;
            fail("understand", line);
        }
    }
    fclose(scratch);
}

static void loopback_up(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (any < 0 || ioctl(any, SIOCSIFFLAGS, &request)) fail("raise", "lo");
    close(any);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    must_mount("dev", "/dev", "devtmpfs", 0, "");
    int console = open("/dev/console", O_RDWR);
    for (int standard = 0; console >= 0 && standard < 3; standard++) dup2(console, standard);
    load_modules();
    // What is in the initial file system is out of sight once the root is entered.
    int tool = open("/compile", O_RDONLY | O_CLOEXEC);
    FILE *config = fopen("/config", "re");
    if (tool < 0 || !config) fail("open", "/config");
    enter_root();

    must_mount("proc", "/proc", "proc", 0, "");
    must_mount("sys", "/sys", "sysfs", 0, "");
    must_mount("tmpfs", "/run", "tmpfs", 0, "mode=755");
    must_mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777");
    must_mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777");
    must_mount("devpts", "/dev/pts", "devpts", 0, "gid=5,mode=620,ptmxmode=666");
    // Not every kernel has these.
    mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, "");
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "");
    symlink("/proc/self/fd", "/dev/fd");
    symlink("/proc/self/fd/0", "/dev/stdin");
    symlink("/proc/self/fd/1", "/dev/stdout");
    symlink("/proc/self/fd/2", "/dev/stderr");
    loopback_up();
    sethostname("vm", 2);
    // As a login has it; the kernel's own is lower.
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, 1 << 20});

    char opened[32];
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", tool);
    copy(opened, COMPILE);
    close(tool);
    apply(config);
    fclose(config);
    agent();
}
