/* System calls on buffers that left RAM move every byte. */
#define _GNU_SOURCE
#include "pressure.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* More than the budget keeps in RAM. */
#define LARGE ((size_t)20 << 20)

static int scratch(void) {
    char name[] = "evicted-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    return file;
}

static void files(void) {
    int file = scratch();
    unsigned char *out = evicted(LARGE, 1);
    CHECK(write(file, out, LARGE) == (ssize_t)LARGE);
    CHECK(pwrite(file, out + 5000, 100000, 5000) == 100000);
    free(out);
    unsigned char *in = evicted(LARGE, 2);
    CHECK(lseek(file, 0, SEEK_SET) == 0);
    CHECK(read(file, in, LARGE) == (ssize_t)LARGE);
    CHECK(is_filled(in, LARGE, 1));
    CHECK(read(file, in, LARGE) == 0);
    fill(in, LARGE, 2);
    evict(in, LARGE);
    CHECK(pread(file, in, LARGE, 0) == (ssize_t)LARGE);
    CHECK(is_filled(in, LARGE, 1));
    evict(in, LARGE);
    CHECK(pread(file, in, LARGE, LARGE - 100000) == 100000);
    CHECK(pread(file, in + 777, 3, 0) == 3 && in[777] == byte_at(0, 1));
    free(in);

    enum { PARTS = 40 };
    struct iovec *parts = calloc(PARTS, sizeof *parts);
    size_t total = 0;
    for (int i = 0; i < PARTS; i++) {
        parts[i].iov_len = 60001 * i % 300007;
        parts[i].iov_base = malloc(parts[i].iov_len + 1);
        fill(parts[i].iov_base, parts[i].iov_len, i);
        total += parts[i].iov_len;
    }
    press();
    CHECK(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
    CHECK(writev(file, parts, PARTS) == (ssize_t)total);
    for (int i = 0; i < PARTS; i++) memset(parts[i].iov_base, 0, parts[i].iov_len);
    press();
    CHECK(preadv(file, parts, PARTS, 0) == (ssize_t)total);
    for (int i = 0; i < PARTS; i++) CHECK(is_filled(parts[i].iov_base, parts[i].iov_len, i));
    press();
    CHECK(pwritev(file, parts, PARTS, 10) == (ssize_t)total);
    press();
    CHECK(lseek(file, 10, SEEK_SET) == 10 && readv(file, parts, PARTS) == (ssize_t)total);
    for (int i = 0; i < PARTS; i++) {
        CHECK(is_filled(parts[i].iov_base, parts[i].iov_len, i));
        free(parts[i].iov_base);
    }
    free(parts);
    close(file);

    file = open(".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    if (file >= 0) {
        unsigned char *block = evicted(9 << 20, 5);
        CHECK(write(file, block, 9 << 20) == 9 << 20);
        memset(block, 7, 9 << 20);
        evict(block, 9 << 20);
        CHECK(pread(file, block, 9 << 20, 0) == 9 << 20);
        CHECK(is_filled(block, 9 << 20, 5));
        free(block);
        close(file);
    }
}

struct peer {
    int descriptor;
    size_t len;
    unsigned seed;
};

static void *drain(void *argument) {
    struct peer *peer = argument;
    unsigned char *in = evicted(1 << 20, 9);
    size_t done = 0;
    while (done < peer->len) {
        ssize_t got = read(peer->descriptor, in, 1 << 20);
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++) CHECK(in[i] == byte_at(done + i, peer->seed));
        done += got;
    }
    free(in);
    return NULL;
}

static void streams(void) {
    int pair[2];
    for (int kind = 0; kind < 4; kind++) {
        if (kind == 0) CHECK(pipe(pair) == 0);
        else {
            int both[2];
            CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
            pair[0] = both[0];
            pair[1] = both[1];
        }
        struct peer peer = {pair[0], 10 << 20, 30 + kind};
        unsigned char *out = evicted(peer.len, peer.seed);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, drain, &peer) == 0);
        ssize_t sent;
        if (kind == 2) {
            struct iovec *parts = malloc(3 * sizeof *parts);
            struct msghdr *header = calloc(1, sizeof *header);
            for (int i = 0; i < 3; i++) {
                parts[i].iov_base = out + i * (3 << 20);
                parts[i].iov_len = i == 2 ? 4 << 20 : 3 << 20;
            }
            header->msg_iov = parts;
            header->msg_iovlen = 3;
            sent = sendmsg(pair[1], header, 0);
            free(parts);
            free(header);
        } else if (kind == 3) sent = send(pair[1], out, peer.len, 0);
        else sent = write(pair[1], out, peer.len);
        CHECK(sent == (ssize_t)peer.len);
        CHECK(pthread_join(thread, NULL) == 0);
        free(out);
        close(pair[0]);
        close(pair[1]);
    }
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    unsigned char *in = evicted(300000, 1), *out = evicted(300000, 2);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(write(pair[1], out, 300000) == 300000);
        _exit(0);
    }
    CHECK(recv(pair[0], in, 300000, MSG_WAITALL) == 300000 && is_filled(in, 300000, 2));
    int *status = (int *)evicted(PAGE, 3);
    evict(status, 4);
    CHECK(waitpid(child, status, 0) == child && *status == 0);
    free(status);
    free(in);
    free(out);
    close(pair[0]);
    close(pair[1]);
}

static void datagrams(void) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    unsigned char *in = evicted(60000, 1), *out = evicted(60000, 2);
    for (int i = 0; i < 3; i++) {
        evict(in, 60000);
        size_t len = i == 0 ? 60000 : 5000 * i;
        CHECK(send(pair[0], out, len, 0) == (ssize_t)len);
        memset(in, 0, 60000);
        press();
        ssize_t got;
        if (i == 0) got = recv(pair[1], in, 60000, 0);
        else if (i == 1) got = read(pair[1], in, 60000);
        else {
            struct sockaddr_un *from = (void *)evicted(PAGE, 4);
            socklen_t *from_len = (void *)evicted(PAGE, 4);
            *from_len = sizeof *from;
            evict(from, PAGE);
            got = recvfrom(pair[1], in, 60000, 0, (struct sockaddr *)from, from_len);
            free(from);
            free(from_len);
        }
        CHECK(got == (ssize_t)len && is_filled(in, len, 2));
    }
    struct mmsghdr *messages = calloc(4, sizeof *messages);
    for (int i = 0; i < 4; i++) {
        struct iovec *part = malloc(sizeof *part);
        part->iov_base = out + i * 10000;
        part->iov_len = 10000;
        messages[i].msg_hdr.msg_iov = part;
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    press();
    CHECK(sendmmsg(pair[0], messages, 4, 0) == 4);
    for (int i = 0; i < 4; i++) messages[i].msg_hdr.msg_iov->iov_base = in + i * 10000;
    memset(in, 0, 60000);
    press();
    CHECK(recvmmsg(pair[1], messages, 4, 0, NULL) == 4);
    CHECK(memcmp(in, out, 40000) == 0);
    struct iovec *part = messages[0].msg_hdr.msg_iov;
    part->iov_len = 60000;
    part->iov_base = out;
    press();
    CHECK(sendmsg(pair[0], &messages[0].msg_hdr, 0) == 60000);
    part->iov_base = in;
    memset(in, 0, 60000);
    press();
    CHECK(recvmsg(pair[1], &messages[0].msg_hdr, 0) == 60000 && is_filled(in, 60000, 2));
    for (int i = 0; i < 4; i++) free(messages[i].msg_hdr.msg_iov);
    free(messages);
    free(in);
    free(out);
    close(pair[0]);
    close(pair[1]);

    int event = eventfd(41, 0);
    uint64_t *count = (void *)evicted(PAGE, 1);
    CHECK(read(event, count, 8) == 8 && *count == 41);
    free(count);
    close(event);
}

static void stdio(void) {
    FILE *file = tmpfile();
    unsigned char *block = evicted(LARGE, 6);
    CHECK(fwrite(block, 1, 1000, file) == 1000);
    CHECK(fwrite(block, 8, LARGE / 8, file) == LARGE / 8);
    char *text = malloc(3 << 20);
    memset(text, 't', (3 << 20) - 1);
    text[(3 << 20) - 1] = 0;
    evict(text, 3 << 20);
    CHECK(fputs(text, file) >= 0);
    evict(text, 3 << 20);
    CHECK(fprintf(file, "%d%s%.1f", 5, text, 0.5) == 1 + (3 << 20) - 1 + 3);
    rewind(file);
    CHECK(fread(block, 1, 1000, file) == 1000);
    memset(block, 0, LARGE);
    evict(block, LARGE);
    CHECK(fread(block, 1, LARGE, file) == LARGE && is_filled(block, LARGE, 6));
    evict(block, LARGE);
    size_t rest = 2 * ((size_t)(3 << 20) - 1) + 4;
    CHECK(fread(block, 1, LARGE, file) == rest && feof(file));
    CHECK(block[0] == 't' && block[(3 << 20) - 1] == '5');
    CHECK(memcmp(block + rest - 4, "t0.5", 4) == 0);
    CHECK(setvbuf(file, (char *)block, _IOFBF, 100000) == 0);
    rewind(file);
    press();
    CHECK(fgetc(file) == byte_at(0, 6));
    fclose(file);
    free(block);
    free(text);
}

/* Streams that hand the program's memory to the kernel however little of it there is. */
static void short_streams(void) {
    for (int kind = 0; kind < 2; kind++) {
        FILE *file = tmpfile();
        unsigned char *block = evicted(2 * PAGE, 7);
        char own[100];
        CHECK(file && setvbuf(file, own, kind ? _IOFBF : _IONBF, kind ? sizeof own : 0) == 0);
        CHECK(fwrite(block + PAGE - 45, 1, 90, file) == 90 && fwrite(block, 1, 90, file) == 90);
        rewind(file);
        evict(block, 2 * PAGE);
        CHECK(fread(block + PAGE - 45, 1, 90, file) == 90 && !ferror(file));
        CHECK(is_filled(block, 2 * PAGE, 7));
        evict(block, 2 * PAGE);
        CHECK(fread(block + PAGE, 1, 90, file) == 90 && memcmp(block + PAGE, block, 90) == 0);
        fclose(file);
        free(block);
    }
}

/* A page of its own for every small argument, so that each is evicted. */
#define EVICTED(type) ((type *)evicted(sizeof(type), 11))

static char *evicted_text(const char *text) {
    char *copy = aligned_alloc(PAGE, PAGE);
    strcpy(copy, text);
    return copy;
}

static void small(void) {
    char *path = evicted_text("small-file"), *other = evicted_text("small-other");
    char *folder = evicted_text("small-folder");
    struct stat *status = EVICTED(struct stat);
    evict(path, PAGE);
    int file = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    CHECK(file >= 0);
    press();
    CHECK(fstat(file, status) == 0 && S_ISREG(status->st_mode));
    press();
    CHECK(stat(path, status) == 0 && lstat(path, status) == 0);
    press();
    CHECK(access(path, R_OK) == 0 && rename(path, other) == 0);
    CHECK(access(path, R_OK) == -1 && errno == ENOENT);
    press();
    CHECK(symlink(other, path) == 0);
    char *link = (char *)evicted(PAGE, 1);
    CHECK(readlink(path, link, PAGE) == 11 && memcmp(link, "small-other", 11) == 0);
    press();
    CHECK(unlink(path) == 0 && unlink(other) == 0);
    press();
    CHECK(mkdir(folder, 0700) == 0 && rmdir(folder) == 0);
    press();
    CHECK(getcwd(link, PAGE) == link && link[0] == '/');
    press();
    CHECK(chdir(link) == 0);
    struct fiemap *map = (void *)evicted(sizeof *map + 200 * sizeof(struct fiemap_extent), 1);
    CHECK(ftruncate(file, 4 << 20) == 0 && pwrite(file, map, PAGE, 1 << 20) == PAGE);
    *map = (struct fiemap){.fm_length = 4 << 20, .fm_flags = 1, .fm_extent_count = 200};
    evict(map, sizeof *map + 200 * sizeof(struct fiemap_extent));
    CHECK(ioctl(file, FS_IOC_FIEMAP, map) == 0 || errno == EOPNOTSUPP || errno == ENOTTY);
    char *here = evicted_text(".");
    struct dirent **found;
    press();
    int entries = scandir(here, &found, NULL, NULL);
    CHECK(entries >= 2);
    while (entries > 0) free(found[--entries]);
    free(found);
    sigset_t *pending = EVICTED(sigset_t);
    CHECK(sigpending(pending) == 0 && sigismember(pending, SIGUSR1) == 0);
    char *memory_name = evicted_text("memory");
    press();
    int memory = memfd_create(memory_name, 0);
    CHECK(memory >= 0 && close(memory) == 0);
    struct statfs *system = EVICTED(struct statfs);
    CHECK(fstatfs(file, system) == 0 && system->f_bsize > 0);
    struct flock *lock = EVICTED(struct flock);
    memset(lock, 0, sizeof *lock);
    lock->l_type = F_WRLCK;
    press();
    CHECK(fcntl(file, F_SETLK, lock) == 0);
    FILE *stream = NULL;
    char *name = evicted_text("/proc/self/stat");
    press();
    CHECK((stream = fopen(name, "r")) != NULL);
    fclose(stream);

    struct timespec *time = EVICTED(struct timespec), *left = EVICTED(struct timespec);
    time->tv_sec = 0;
    time->tv_nsec = 1000000;
    press();
    CHECK(nanosleep(time, left) == 0);
    press();
    CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, time, NULL) == 0);
    press();
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, time) == 0 && time->tv_nsec >= 0);
    struct timeval *now = EVICTED(struct timeval);
    CHECK(gettimeofday(now, NULL) == 0 && now->tv_sec > 1000000000);
    struct rusage *usage = EVICTED(struct rusage);
    CHECK(getrusage(RUSAGE_SELF, usage) == 0);
    struct utsname *system_name = EVICTED(struct utsname);
    CHECK(uname(system_name) == 0 && strcmp(system_name->sysname, "Linux") == 0);
    unsigned char *random = evicted(100000, 1);
    CHECK(getrandom(random, 100000, 0) == 100000 && !is_filled(random, 100000, 1));

#if __GLIBC_PREREQ(2, 36)
    fill(random, 100000, 1);
    evict(random, 100000);
    arc4random_buf(random, 100000);
    CHECK(!is_filled(random, PAGE, 1) && !is_filled(random + 95000, 5000, 1));
#endif

    int *pair = EVICTED(int);
    CHECK(pipe(pair) == 0);
    struct pollfd *list = EVICTED(struct pollfd);
    list->fd = pair[1];
    list->events = POLLOUT;
    press();
    CHECK(poll(list, 1, 1000) == 1 && list->revents == POLLOUT);
    fd_set *set = EVICTED(fd_set);
    FD_ZERO(set);
    FD_SET(pair[1], set);
    struct timeval *limit = EVICTED(struct timeval);
    limit->tv_sec = 1;
    limit->tv_usec = 0;
    press();
    CHECK(select(pair[1] + 1, NULL, set, NULL, limit) == 1 && FD_ISSET(pair[1], set));
    int epoll = epoll_create1(0);
    struct epoll_event *event = EVICTED(struct epoll_event);
    event->events = EPOLLOUT;
    event->data.u64 = 99;
    press();
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], event) == 0);
    memset(event, 0, sizeof *event);
    press();
    CHECK(epoll_wait(epoll, event, 1, 1000) == 1 && event->data.u64 == 99);
    unsigned *futex = EVICTED(unsigned);
    *futex = 5;
    press();
    CHECK(syscall(SYS_futex, futex, 0 | 128, 6, NULL, NULL, 0) == -1 && errno == EAGAIN);
    *time = (struct timespec){.tv_nsec = 1000000};
    press();
    CHECK(syscall(SYS_futex, futex, 0 | 128, 5, time, NULL, 0) == -1 && errno == ETIMEDOUT);

    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un *address = EVICTED(struct sockaddr_un);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    sprintf(address->sun_path + 1, "deepheap-%d", getpid());
    press();
    CHECK(bind(server, (struct sockaddr *)address, sizeof *address) == 0 && listen(server, 1) == 0);
    press();
    CHECK(connect(client, (struct sockaddr *)address, sizeof *address) == 0);
    struct sockaddr_un *peer = EVICTED(struct sockaddr_un);
    socklen_t *len = EVICTED(socklen_t);
    *len = sizeof *peer;
    press();
    int accepted = accept(server, (struct sockaddr *)peer, len);
    CHECK(accepted >= 0);
    int *option = EVICTED(int);
    *len = sizeof *option;
    press();
    CHECK(getsockopt(accepted, SOL_SOCKET, SO_TYPE, option, len) == 0 && *option == SOCK_STREAM);
    /* What is wrong stays wrong. */
    void *volatile wrong = (void *)8;
    CHECK(write(pair[1], wrong, 10) == -1 && errno == EFAULT);
    CHECK(stat(wrong, status) == -1 && errno == EFAULT);
    CHECK(read(-1, random, 100000) == -1 && errno == EBADF);
}

int main(void) {
    files();
    streams();
    datagrams();
    stdio();
    short_streams();
    small();
    puts("every byte moved");
    return 0;
}
