/* A stand-in for librdmacm.so.1 on machines without RDMA: rsockets that are TCP connections. Their numbers are no descriptors, so that whoever takes one for a
 * descriptor meets EBADF. RDMACM_BREAKS=N breaks each after it has sent N bytes, RDMACM_NOWHERE has none be connected. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST = 1000000, DESCRIPTORS = 65536, POLLED = 8 };

/* What all of them have carried. */
atomic_ulong rdmacm_sent, rdmacm_received;
static atomic_ulong sent_by[DESCRIPTORS];

static int fd_of(int number) {
    return number >= FIRST && number < FIRST + DESCRIPTORS ? number - FIRST : -1;
}

static int number_of(int fd) {
    if (fd >= 0)
        sent_by[fd] = 0;
    return fd < 0 ? fd : fd + FIRST;
}

int rsocket(int domain, int type, int protocol) {
    return number_of(socket(domain, type | SOCK_CLOEXEC, protocol));
}

int rbind(int number, const struct sockaddr *at, socklen_t len) {
    return bind(fd_of(number), at, len);
}

int rlisten(int number, int backlog) {
    return listen(fd_of(number), backlog);
}

int raccept(int number, struct sockaddr *from, socklen_t *len) {
    return number_of(accept4(fd_of(number), from, len, SOCK_CLOEXEC));
}

int rconnect(int number, const struct sockaddr *to, socklen_t len) {
    if (getenv("RDMACM_NOWHERE")) {
        errno = ENETUNREACH;
        return -1;
    }
    return connect(fd_of(number), to, len);
}

ssize_t rrecv(int number, void *to, size_t len, int flags) {
    ssize_t received = recv(fd_of(number), to, len, flags);
    if (received > 0)
        rdmacm_received += received;
    return received;
}

ssize_t rsend(int number, const void *from, size_t len, int flags) {
    const char *breaks = getenv("RDMACM_BREAKS");
    int fd = fd_of(number);
    if (fd >= 0 && breaks && sent_by[fd] >= strtoul(breaks, NULL, 10)) {
        errno = ECONNRESET;
        return -1;
    }
    ssize_t sent = send(fd, from, len, flags);
    if (sent > 0) {
        rdmacm_sent += sent;
        sent_by[fd] += sent;
    }
    return sent;
}

int rpoll(struct pollfd *polled, nfds_t count, int timeout) {
    struct pollfd real[POLLED];
    if (count > POLLED) {
        errno = EINVAL;
        return -1;
    }
    for (nfds_t i = 0; i < count; i++) {
        int fd = fd_of(polled[i].fd);
        real[i] = polled[i];
        real[i].fd = fd < 0 ? polled[i].fd : fd;
    }
    int ready = poll(real, count, timeout);
    for (nfds_t i = 0; i < count; i++)
        polled[i].revents = real[i].revents;
    return ready;
}

int rgetsockname(int number, struct sockaddr *at, socklen_t *len) {
    return getsockname(fd_of(number), at, len);
}

int rgetsockopt(int number, int level, int name, void *value, socklen_t *len) {
    return getsockopt(fd_of(number), level, name, value, len);
}

int rfcntl(int number, int command, int value) {
    return fcntl(fd_of(number), command, value);
}

int rclose(int number) {
    return close(fd_of(number));
}
