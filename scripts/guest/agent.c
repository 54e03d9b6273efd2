// Runs what the host asks for, one command at a time, and relays what it says. It is the first process, so it reaps whoever is
// left alone.
//
// Both sides speak over a virtio port. Host to guest:
//   run N        N bytes follow: strings that end in NUL. The folder to run in; NAME=VALUE…; an empty one; the arguments
//   aside N      the same, beside the command that runs; what it says comes as the command's errors
//   input N      N bytes follow, for the command's standard input; none: that is its end
//   kill         kills the command and all others
// Guest to host:
//   ready        once, and again after each end of a command
//   1 N, 2 N     N bytes follow, from the command's standard output or error
//   exit S       the command is at its end with the wait status S; all it left running is killed, all it said is told
#define _GNU_SOURCE
#include "guest.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static int port;

// The command that runs; 0: none.
static pid_t command;
// Our ends of its pipes; -1 where there is none.
static int input = -1, output[2] = {-1, -1};

// What has come from the host, and where the unread begins.
static char *received;
static size_t have, room;

// Input that the command has not read yet. Nothing more is taken from the host meanwhile.
static size_t input_left;

static noreturn void give_up(const char *what) {
    printf("agent: %s: %s\n", what, strerror(errno));
    reboot(RB_POWER_OFF);
    _exit(1);
}

static void write_all(int file, const char *bytes, size_t count) {
    while (count) {
        ssize_t written = write(file, bytes, count);
        if (written < 0 && errno != EINTR) give_up("write");
        if (written > 0) bytes += written, count -= written;
    }
}

static void tell(const char *format, ...) {
    char line[64];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    write_all(port, line, length);
}

static void open_port(void) {
    char path[300] = "";
    struct dirent *entry;
    DIR *ports = opendir("/sys/class/virtio-ports");
    while (ports && (entry = readdir(ports)))
        if (entry->d_name[0] != '.') snprintf(path, sizeof path, "/dev/%s", entry->d_name);
    if (ports) closedir(ports);
    port = open(path, O_RDWR | O_CLOEXEC);
    if (port < 0) give_up("the port to the host");
}

// Whether the pipe is still open.
static int relay(int which) {
    static char bytes[1 << 15];
    ssize_t count = read(output[which], bytes, sizeof bytes);
    if (count > 0) {
        tell("%d %zd\n", which + 1, count);
        write_all(port, bytes, count);
        return 1;
    }
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    close(output[which]);
    output[which] = -1;
    return 0;
}

static pid_t start(char *strings, size_t count, const int files[3]) {
    char *words[4096], *end = strings + count;
    size_t environment = 1, argument = 0, index = 0;
    for (char *word = strings; word < end && index < 4095; word += strlen(word) + 1) {
        // The first empty one ends the environment.
        if (!argument && index && !*word) argument = index + 1, words[index++] = NULL;
        else words[index++] = word;
    }
    words[index] = NULL;
    pid_t child = fork();
    if (child) return child;
    for (int standard = 0; standard < 3; standard++) dup2(files[standard], standard);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    if (!argument || argument == index || chdir(words[0])) {
        dprintf(2, "agent: no folder %s\n", words[0]);
        _exit(126);
    }
    environ = words + environment;
    execvp(words[argument], words + argument);
    dprintf(2, "agent: %s: %s\n", words[argument], strerror(errno));
    _exit(127);
}

static void run(char *strings, size_t count) {
    int pipes[3][2];
    for (int standard = 0; standard < 3; standard++)
        if (pipe2(pipes[standard], O_CLOEXEC)) give_up("pipe");
    // Our ends only: the other's are another open file.
    input = pipes[0][1];
    fcntl(input, F_SETFL, O_NONBLOCK);
    for (int which = 0; which < 2; which++) {
        output[which] = pipes[which + 1][0];
        fcntl(output[which], F_SETFL, O_NONBLOCK);
    }
    int files[3] = {pipes[0][0], pipes[1][1], pipes[2][1]};
    command = start(strings, count, files);
    // The ends of what runs aside are copies of the command's: none is left when these are closed and all is killed.
    for (int standard = 0; standard < 3; standard++) close(files[standard]);
}

// Its output goes the way of our own record of the command's errors: through the command's descriptor.
static void run_aside(char *strings, size_t count) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/2", command);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), errors = open(path, O_WRONLY | O_CLOEXEC);
    int files[3] = {null, errors < 0 ? null : errors, errors < 0 ? null : errors};
    start(strings, count, files);
    close(null);
    if (errors >= 0) close(errors);
}

static void command_ended(int status) {
    // Everybody but ourselves. Killed is not yet reaped: whoever is left holds no pipe of ours after it is.
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {}
    for (int which = 0; which < 2; which++) {
        while (output[which] >= 0 && relay(which)) {}
        if (output[which] >= 0) close(output[which]);
        output[which] = -1;
    }
    if (input >= 0) close(input);
    input = -1, input_left = 0, command = 0;
    tell("exit %d\n", status);
    tell("ready\n");
}

static void reap(void) {
    int status;
    for (pid_t child; (child = waitpid(-1, &status, WNOHANG)) > 0;)
        if (child == command) {
            command_ended(status);
            return;
        }
}

static void drop_received(size_t count) {
    memmove(received, received + count, have -= count);
}

// The next of what the host has said, if it is here as a whole. Whether there was one.
static int obey(void) {
    if (input_left) {
        ssize_t taken = input < 0 ? (ssize_t)have : write(input, received, have < input_left ? have : input_left);
        if (taken < 0 && errno == EPIPE) taken = have < input_left ? have : input_left;
        if (taken <= 0) return 0;
        drop_received(taken);
        input_left -= taken;
        return 1;
    }
    char *end = memchr(received, '\n', have);
    if (!end) return 0;
    *end = 0;
    char verb[16];
    size_t count = 0, line = end + 1 - received;
    int fields = sscanf(received, "%15s %zu", verb, &count);
    if (fields == 2 && strcmp(verb, "input") && have < line + count) {
        *end = '\n';
        return 0;
    }
    if (!strcmp(verb, "run") && !command) run(end + 1, count);
    else if (!strcmp(verb, "aside") && command) run_aside(end + 1, count);
    else if (!strcmp(verb, "kill")) kill(-1, SIGKILL);
    if (!strcmp(verb, "input")) {
        input_left = count;
        count = 0;
        if (!input_left && input >= 0) close(input), input = -1;
    }
    drop_received(line + count);
    return 1;
}

static void receive(void) {
    if (room - have < 1 << 16 && !(received = realloc(received, room = have + (1 << 20)))) give_up("memory");
    ssize_t count = read(port, received + have, room - have);
    if (count > 0) have += count;
    // The host's end is closed.
    else if (count == 0) usleep(10000);
}

noreturn void agent(void) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigaddset(&children, SIGPIPE);
    sigprocmask(SIG_BLOCK, &children, NULL);
    int ended = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    open_port();
    tell("ready\n");
    for (;;) {
        struct pollfd waited[] = {
            {ended, POLLIN, 0},
            {output[0], POLLIN, 0},
            {output[1], POLLIN, 0},
            {input_left && have ? input : -1, POLLOUT, 0},
            {input_left && have ? -1 : port, POLLIN, 0},
        };
        poll(waited, 5, -1);
        struct signalfd_siginfo signal;
        while (read(ended, &signal, sizeof signal) > 0) {}
        for (int which = 0; which < 2; which++)
            if (waited[which + 1].revents) relay(which);
        if (waited[4].revents) receive();
        while (obey()) {}
        reap();
    }
}
