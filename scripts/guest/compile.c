// Stands for a compiler: has the host run it. A compiler is slow in an emulated machine, and a cross compiler makes the same.
//
// Compiled files are in folders in memory (`scratch` in init.c), which the host has at the same paths. What a command line names
// there is first copied to the host, as a whole: the file, or the folder right below the scratch folder with all that is in it.
// What the host's compiler has changed is copied back. All else that it reads must be in a shared folder.
//
// A request is a file in /run/host/requests, written as ID.part and then renamed to ID.request: strings that end in NUL.
// What is to be read from standard input, because - is an argument, is in ID.in.
//   the tool; the folder; NAME=VALUE…; an empty one; the names to copy, each with its scratch folder; an empty one; the arguments
// Its answer is ID.reply: the exit status, then the names of changed files; ID.out and ID.err hold what the tool said.
#define _GNU_SOURCE
#include "guest.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

extern char **environ;

// Folders in memory, and where the host's are.
static struct { char tag[64], path[PATH_MAX]; } scratch[MOST];
static int scratches;

// Names below a scratch folder that the command line mentions.
static struct { int in; char name[NAME_MAX + 1]; } mentioned[MOST];
static int mentions;

static noreturn void fail(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
    exit(125);
}

static void read_scratch(void) {
    FILE *list = fopen(SCRATCH, "re");
    if (!list) fail(SCRATCH);
    while (scratches < MOST && fscanf(list, "%63s %4095[^\n]\n", scratch[scratches].tag, scratch[scratches].path) == 2)
        scratches++;
    fclose(list);
}

// Any part of an argument may be a path: -I/path, -Wl,-rpath=/path.
static void mention(const char *text) {
    for (int in = 0; in < scratches; in++) {
        size_t length = strlen(scratch[in].path);
        for (const char *at = text; (at = strstr(at, scratch[in].path)); at += length) {
            if (at[length] != '/') continue;
            char name[NAME_MAX + 1];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at + length + 1, "/:,= "), at + length + 1);
            int index = 0;
            while (index < mentions && (mentioned[index].in != in || strcmp(mentioned[index].name, name))) index++;
            if (!*name || index < mentions || mentions == MOST) continue;
            mentioned[mentions].in = in;
            strcpy(mentioned[mentions++].name, name);
        }
    }
}

// Copies a file with its mode and times, by which an unchanged one is known the next time.
static void copy_file(const char *from, const char *to, const struct stat *status) {
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0) return;
    // Not written over: a program that runs cannot be, and who has the old one open keeps it.
    unlink(to);
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0) fail(to);
    static char bytes[1 << 18];
    ssize_t count;
    while ((count = read(in, bytes, sizeof bytes)) > 0)
        if (write(out, bytes, count) != count) fail(to);
    if (count < 0) fail(from);
    fchmod(out, status->st_mode & 07777);
    futimens(out, (struct timespec[]){status->st_mtim, status->st_mtim});
    close(in), close(out);
}

static int is_same(const struct stat *one, const struct stat *other) {
    return one->st_size == other->st_size && one->st_mtim.tv_sec == other->st_mtim.tv_sec &&
           one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

static void copy_tree(const char *from, const char *to) {
    struct stat here, there;
    if (lstat(from, &here)) return;
    if (S_ISREG(here.st_mode)) {
        if (stat(to, &there) || !is_same(&here, &there)) copy_file(from, to, &here);
    } else if (S_ISLNK(here.st_mode)) {
        char target[PATH_MAX] = "";
        if (readlink(from, target, sizeof target - 1) > 0) unlink(to), (void)!symlink(target, to);
    } else if (S_ISDIR(here.st_mode)) {
        mkdir(to, 0755);
        DIR *folder = opendir(from);
        for (struct dirent *entry; folder && (entry = readdir(folder));) {
            char source[PATH_MAX], copy[PATH_MAX];
            if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
            snprintf(source, sizeof source, "%s/%s", from, entry->d_name);
            snprintf(copy, sizeof copy, "%s/%s", to, entry->d_name);
            copy_tree(source, copy);
        }
        if (folder) closedir(folder);
    }
}

// The host's name of a path in a scratch folder, as it is mounted here.
static int mounted(char *to, size_t size, const char *path) {
    for (int in = 0; in < scratches; in++) {
        size_t length = strlen(scratch[in].path);
        if (strncmp(path, scratch[in].path, length) || path[length] != '/') continue;
        snprintf(to, size, HOST "/%s%s", scratch[in].tag, path + length);
        return 1;
    }
    return 0;
}

static void put(FILE *file, const char *text) {
    fwrite(text, strlen(text) + 1, 1, file);
}

static void pour(const char *id, const char *kind, int to) {
    char path[PATH_MAX], bytes[1 << 14];
    snprintf(path, sizeof path, "%s.%s", id, kind);
    int from = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t count; from >= 0 && (count = read(from, bytes, sizeof bytes)) > 0;)
        if (write(to, bytes, count) != count) break;
    if (from >= 0) close(from);
    unlink(path);
}

static void send_request(const char *id, const char *folder, char **arguments) {
    char part[PATH_MAX], whole[PATH_MAX];
    snprintf(part, sizeof part, "%s.part", id);
    snprintf(whole, sizeof whole, "%s.request", id);
    FILE *request = fopen(part, "we");
    if (!request) fail(part);
    put(request, program_invocation_short_name), put(request, folder);
    for (char **variable = environ; *variable; variable++) put(request, *variable);
    put(request, "");
    for (int index = 0; index < mentions; index++) {
        char path[PATH_MAX + NAME_MAX + 2];
        snprintf(path, sizeof path, "%s/%s", scratch[mentioned[index].in].path, mentioned[index].name);
        put(request, path);
    }
    put(request, "");
    for (; *arguments; arguments++) put(request, *arguments);
    if (fclose(request) || rename(part, whole)) fail(part);
}

// All that is there to read, for the tool to read again.
static void send_input(const char *id) {
    char path[PATH_MAX], bytes[1 << 14];
    snprintf(path, sizeof path, "%s.in", id);
    int to = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (to < 0) fail(path);
    for (ssize_t count; (count = read(0, bytes, sizeof bytes)) > 0;)
        if (write(to, bytes, count) != count) fail(path);
    close(to);
}

// Copies back what the host has changed. Its exit status.
static int take_reply(const char *id) {
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s.reply", id);
    while (access(path, F_OK)) usleep(3000);
    FILE *reply = fopen(path, "re");
    int status = 125;
    if (!reply || fscanf(reply, "%d\n", &status) != 1) fail(path);
    while (fgets(line, sizeof line, reply)) {
        char there[PATH_MAX], folder[PATH_MAX];
        line[strcspn(line, "\n")] = 0;
        if (!mounted(there, sizeof there, line)) continue;
        for (char *slash = line; (slash = strchr(slash + 1, '/'));) {
            snprintf(folder, sizeof folder, "%.*s", (int)(slash - line), line);
            mkdir(folder, 0755);
        }
        struct stat status;
        if (!stat(there, &status)) copy_file(there, line, &status);
    }
    fclose(reply);
    unlink(path);
    return status;
}

int main(int count, char **arguments) {
    char folder[PATH_MAX], id[128];
    if (!getcwd(folder, sizeof folder)) fail("the folder");
    // The time, too: in another namespace there are the same process ids.
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(id, sizeof id, REQUESTS "/%d-%lld", getpid(), now.tv_sec * 1000000000LL + now.tv_nsec);
    read_scratch();
    mention(folder);
    for (int index = 1; index < count; index++) {
        char relative[2 * PATH_MAX];
        mention(arguments[index]);
        snprintf(relative, sizeof relative, "%s/%s", folder, arguments[index]);
        mention(relative);
        if (!strcmp(arguments[index], "-")) send_input(id);
    }
    for (int index = 0; index < mentions; index++) {
        char from[2 * PATH_MAX], to[2 * PATH_MAX];
        snprintf(from, sizeof from, "%s/%s", scratch[mentioned[index].in].path, mentioned[index].name);
        mounted(to, sizeof to, from);
        copy_tree(from, to);
    }
    send_request(id, folder, arguments + 1);
    int status = take_reply(id);
    pour(id, "out", 1);
    pour(id, "err", 2);
    return status;
}
