/* The executables: bin/macvlan and the others, in a checkout and in a bundle, are copies of this program.
 *
 * A warm worker (cni/warm/worker.py) serves a call if it answers and nothing forbids it. Otherwise, and in every doubt, a
 * new Python serves the call: "cold". The worker is asked over a SEQPACKET socket, whose name is made of the digest of
 * the compiled modules, the namespaces and the settings that both must share:
 *
 *     launcher                                worker
 *     connects; is it root that listens?      accepts; is it root that calls?
 *                                             "h": it is free, and waits only for this call
 *     IDENTITY\0NAME\0UMASK\0DEVICE:INODE\0 of CNI_NETNS, then the environment as the kernel laid it out; with
 *     stdin (a memfd), the working directory and stderr as descriptors
 *                                             "+" and a part of stdout, repeated as needed
 *                                             "0" or "1", the exit status, and the rest of stdout;
 *                                             or a letter: why it does not serve this call
 *
 * If the connection ends before the status, the launcher runs the call cold, with the stdin that it has kept. If the
 * launcher ends first, the kernel kills the worker, as it would have been killed in this process.
 *
 * The cold path of a bundle: a node may have no Python, no shell, and not the C library that Python needs. The path of
 * the bundle is not known in advance, but a `#!` line and an ELF interpreter need absolute paths. So this program, which
 * needs only the kernel, finds the bundle from its own path and starts the bundle's dynamic loader with the bundle's
 * libraries and interpreter:
 *
 *     BUNDLE/lib/LOADER --inhibit-cache --library-path BUNDLE/lib --argv0 BUNDLE/bin/python3 BUNDLE/libexec/python3
 *         -IS BUNDLE/libexec/NAME.pyc ARGUMENTS...
 *
 * In a checkout it starts the script libexec/NAME. It passes on the working directory and the environment, but hides the
 * caller's LD_ variables from that loader: they concern the host's libraries. cni/compiled/packed.py undoes this.
 * It is linked statically without a C library, and adds 0.05 ms to a call; with glibc it would add 0.4.
 *
 * cc -DTAG='"cpython-311"' [-DLOADER='"ld-linux-x86-64.so.2"'] ...: with the flags in launcher.flags, by the Makefile and cni/dist/bundle.py.
 */
#define _GNU_SOURCE
#include <asm/unistd.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/stat.h>
#include <linux/time_types.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#ifndef STATX_MNT_ID
#error "needs the kernel's headers of Linux 5.8 or newer"
#endif

#define VERSION_REPLY /* as in cni/run.py */ \
	"{\"cniVersion\": \"1.1.0\", \"supportedVersions\": [\"0.1.0\", \"0.2.0\", \"0.3.0\", \"0.3.1\", \"0.4.0\", " \
	"\"1.0.0\", \"1.1.0\"]}\n"

enum { LONGEST_PATH = 4096, MOST_LINKS = 40 };
enum {
	DIGEST_AT = 12288 - 32, DIGEST_SIZE = 32, /* where the pack has its digest: cni/compiled/pack.py */
	MOST_STDIN = (8 << 20) + 1,              /* as cni/run.py reads: one byte more than is taken */
	HELLO_MS = 1000,                         /* none comes when the workers are stopped; of busy ones see may_wait */
	MOST_WAITS = 15,                         /* so often, however */
	REPLY_MS = 300000,                       /* kubelet itself gives up after 240 s */
	MOST_REPLY = 1 << 20,
	PIECE = 1 << 16,
	MOST_COLD = 1 << 16,
};

/* Why a call is cold: the letters of the file of cold calls, of which a worker sends two. cni/cli/warm.py has the words. */
enum {
	NONE_THERE = 'n', BUSY = 'b', SILENT = 's', ENDED = 'e', FOR_OTHERS = 'o', TOO_LONG = 'x', LIMITED = 'l', UNKNOWN = 'k',
	ASKED = 'c',
};

/* --- in place of a C library --- */

#if defined(__x86_64__)
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call start\n");

static long call(long number, long a, long b, long c, long d, long e)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n_start: mov x0, sp\n and sp, x0, #-16\n b start\n");

static long call(long number, long a, long b, long c, long d, long e)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
}
#else
#error "made for x86_64 and aarch64"
#endif

static size_t length(const char *text)
{
	size_t n = 0;
	while (text[n])
		n++;
	return n;
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static void copy(char *to, const char *from, size_t size)
{
	while (size--)
		*to++ = *from++;
}

/* Write `text` at `end` as far as there is room before `limit`, and return the new end. Nothing is written at `limit`. */
static char *append(char *end, const char *limit, const char *text)
{
	while (*text && end < limit - 1)
		*end++ = *text++;
	if (end < limit)
		*end = '\0';
	return end;
}

static char *append_number(char *end, const char *limit, unsigned long number)
{
	char text[24], *digits = text + sizeof text - 1;
	*digits = '\0';
	do
		*--digits = (char)('0' + number % 10);
	while (number /= 10);
	return append(end, limit, digits);
}

/* --- for warm and cold calls --- */

static char **environment;

/* The rest of `text` after `start`, or NULL if it begins otherwise. */
static char *after(const char *start, char *text)
{
	while (*start && *start == *text)
		start++, text++;
	return *start ? NULL : text;
}

/* The value of the variable whose name is `name`, with its "=", or NULL. The first counts, as for Python. */
static const char *value_of(const char *name)
{
	char *found = NULL;
	for (char **entry = environment; *entry && !found; entry++)
		found = after(name, *entry);
	return found;
}

__attribute__((noreturn)) static void leave(int status)
{
	for (;;)
		call(__NR_exit_group, status, 0, 0, 0, 0);
}

/* Print that `path` cannot be used, between `before` and `remedy`: as a CNI error for a runtime, as text for a person.
 * Then exit. */
__attribute__((noreturn)) static void fail(const char *before, const char *path, long error, const char *remedy)
{
	char text[LONGEST_PATH + 512], *end = text;
	const char *limit = text + sizeof text;
	int runtime = value_of("CNI_COMMAND=") != NULL;

	if (runtime)
		end = append(end, limit, "{\"cniVersion\": \"1.1.0\", \"code\": 5, \"msg\": \"");
	end = append(append(end, limit, "railcni: "), limit, before);
	char *inserted = end;
	end = append(end, limit - 128, path);
	for (char *c = inserted; c < end; c++)
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
			*c = '?';
	end = append_number(append(end, limit, " cannot be used (errno "), limit, error);
	end = append(append(end, limit, "): "), limit, remedy);
	end = append(end, limit, runtime ? "\"}\n" : "\n");
	call(__NR_write, runtime ? 1 : 2, (long)text, end - text, 0, 0);
	leave(1);
}

static const long ignored[4] = {(long)SIG_IGN};

/* Write all to stdout and exit with `status`, or with 1 after a failed write, so that the runtime sees the failure. */
__attribute__((noreturn)) static void answer(const char *said, size_t size, int status)
{
	static const char unheard[] = "railcni: the reply cannot be written to stdout\n";

	call(__NR_rt_sigaction, SIGPIPE, (long)ignored, 0, 8, 0);
	while (size) {
		long written = call(__NR_write, 1, (long)said, size, 0, 0);
		if (written < 0) {
			call(__NR_write, 2, (long)unheard, sizeof unheard - 1, 0, 0);
			leave(1);
		}
		said += written;
		size -= written;
	}
	leave(status);
}

/* Cut `path` after its last "/" and return a copy of the rest in `name`; without a "/", `path` becomes "./". */
static void split(char *path, char *name)
{
	size_t cut = length(path);
	while (cut && path[cut - 1] != '/')
		cut--;
	append(name, name + LONGEST_PATH, path + cut);
	if (cut)
		path[cut] = '\0';
	else
		append(path, path + LONGEST_PATH, "./");
}

/* Follow symbolic links from `path`; `path` becomes the directory of the file at their end, `name` the file's name.
 * Returns 0 or a negative error, as all functions below. */
static long follow(char *path, char *name)
{
	char target[LONGEST_PATH];
	for (int links = 0; links < MOST_LINKS; links++) {
		long size = call(__NR_readlinkat, AT_FDCWD, (long)path, (long)target, sizeof target - 1, 0);
		if (size == -EINVAL) { /* no link */
			split(path, name);
			return 0;
		}
		if (size < 0)
			return size;
		target[size] = '\0';
		split(path, name);
		append(target[0] == '/' ? path : path + length(path), path + LONGEST_PATH, target);
	}
	return -ELOOP;
}

/* --- warm --- */

static char identity[512];         /* what a worker must be one of: the pack, the namespaces, the settings, the root, the powers */
static struct sockaddr_un address; /* where such workers listen */
static int kept_stdin = -1;        /* a memfd with all of stdin, once it was read */
static char said[MOST_REPLY];      /* stdout, as far as the worker has sent it */

static long look(const char *path, struct statx *found)
{
	return call(__NR_statx, AT_FDCWD, (long)path, 0, STATX_INO | STATX_MTIME | STATX_MNT_ID, (long)found);
}

static long open_nothing(void)
{
	return call(__NR_openat, AT_FDCWD, (long)"/dev/null", O_PATH, 0, 0);
}

/* Whether stdin, stdout and stderr are open. The next opened file, such as the pack, would get the number of a closed one.
 * So a descriptor that can be neither read nor written gets this number. */
static int have_streams(void)
{
	for (long fd = 0; fd < 3; fd++)
		if (call(__NR_fcntl, fd, F_GETFD, 0, 0, 0) < 0 && open_nothing() < 0)
			return 0;
	return 1;
}

/* Replace a stdin that is a directory in the same way: with it Python would exit at its start, without a reply. */
static void have_no_directory(void)
{
	struct statx found;
	if (call(__NR_statx, 0, (long)"", AT_EMPTY_PATH, STATX_TYPE, (long)&found) || (found.stx_mode & 0170000) != 0040000)
		return;
	long opened = open_nothing();
	call(__NR_dup3, opened, 0, 0, 0, 0);
	call(__NR_close, opened, 0, 0, 0, 0);
}

/* A digest (FNV-1a) of the variables that the resolver and OpenSSL read in their own time. Workers have those of the call
 * that started them; callers with others have workers of their own. What the loader, malloc and the clock read changes no
 * result. */
static unsigned settings(void)
{
	static const char *const names[] = { /* as in start.py */
		"HOSTALIASES=", "LOCALDOMAIN=", "RES_OPTIONS=", "RESOLV_", "OPENSSL_", "SSL_CERT_DIR=", "SSL_CERT_FILE=",
	};
	unsigned sum = 0; /* of the entries' digests: Go lays out an environment in any order */
	for (char **entry = environment; *entry; entry++)
		for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
			const char *c = after(names[i], *entry) ? *entry : "";
			unsigned digest = *c ? 2166136261u : 0;
			for (; *c; c++)
				digest = (digest ^ (unsigned char)*c) * 16777619u;
			sum += digest;
		}
	return sum;
}

/* Fill `identity` and `address`; whether that succeeded. `directory` is that of the executable. It fails without /proc and
 * on older kernels, because nothing else distinguishes two namespaces. */
static int identify(const char *directory)
{
	static const char *const namespaces[] = { /* the first two are in the name of the socket, with the settings */
		"/proc/self/ns/mnt", "/proc/self/ns/net", "/proc/self/ns/uts", "/proc/self/ns/user",
	};
	char path[LONGEST_PATH], digest[DIGEST_SIZE + 1], *end = identity;
	const char *limit = identity + sizeof identity;
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct powers[_LINUX_CAPABILITY_U32S_3];
	struct statx found;

	append(append(path, path + LONGEST_PATH, directory), path + LONGEST_PATH, "../bin/modules." TAG);
	long pack = call(__NR_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0);
	if (pack < 0)
		return 0;
	long size = call(__NR_pread64, pack, (long)digest, DIGEST_SIZE, DIGEST_AT, 0);
	call(__NR_close, pack, 0, 0, 0, 0);
	if (size != DIGEST_SIZE)
		return 0;
	digest[DIGEST_SIZE] = '\0';
	end = append(end, limit, digest);
	address.sun_family = AF_UNIX;
	for (size_t i = 0; i < sizeof namespaces / sizeof namespaces[0]; i++) {
		if (look(namespaces[i], &found))
			return 0;
		end = append_number(append(end, limit, "-"), limit, found.stx_ino);
		char *rest = address.sun_path, *last = rest + sizeof address.sun_path;
		if (i != 1)
			continue;
		end = append_number(append(end, limit, "-"), limit, settings());
		append(append(append(rest, last, "/run/railcni/warm/"), last, identity), last, ".sock");
	}
	if (look("/", &found) || !(found.stx_mask & STATX_MNT_ID))
		return 0;
	end = append_number(append(end, limit, "-"), limit, found.stx_mnt_id);
	end = append_number(append(end, limit, "-"), limit, found.stx_ino);
	if (call(__NR_capget, (long)&header, (long)powers, 0, 0, 0))
		return 0;
	for (size_t i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
		end = append_number(append(end, limit, "-"), limit, powers[i].effective);
	return 1;
}

/* read(2) of stdin, which waits even if stdin is non-blocking. */
static long read_stdin(char *piece, size_t size)
{
	for (;;) {
		struct pollfd waiting = {0, POLLIN, 0};
		long count = call(__NR_read, 0, (long)piece, size, 0, 0);
		if (count == -EAGAIN)
			call(__NR_ppoll, (long)&waiting, 1, 0, 0, 0);
		else if (count != -EINTR)
			return count;
	}
}

/* Read stdin to its end into a memfd; whether that succeeded. A part that was read cannot be read again, so a later failure
 * is an error. If the caller limits the size of files, which applies to a memfd too, nothing is read. */
static int keep_stdin(void)
{
	static const char again[] = "retry when the node has memory";
	static char piece[PIECE];
	struct rlimit most;
	long size, left = MOST_STDIN;

	if (call(__NR_prlimit64, 0, RLIMIT_FSIZE, 0, (long)&most, 0) || most.rlim_cur != RLIM_INFINITY)
		return 0;
	kept_stdin = call(__NR_memfd_create, (long)"stdin", MFD_CLOEXEC, 0, 0, 0);
	if (kept_stdin < 0)
		return 0;
	while ((size = read_stdin(piece, left < PIECE ? left : PIECE)) > 0) {
		long written = call(__NR_write, kept_stdin, (long)piece, size, 0, 0);
		if (written != size)
			fail("all of ", "stdin", written < 0 ? -written : ENOSPC, again);
		left -= size;
	}
	if (size == 0)
		return 1;
	if (left != MOST_STDIN)
		fail("all of ", "stdin", -size, again);
	call(__NR_close, kept_stdin, 0, 0, 0, 0);
	kept_stdin = -1;
	return 0;
}

/* The next packet from `connection`, of at most `size` bytes, in `packet`; 0 at the end, an error after `ms`. */
static long receive(long connection, char *packet, size_t size, long ms)
{
	struct pollfd waiting = {(int)connection, POLLIN, 0};
	struct __kernel_timespec bound = {ms / 1000, 0};
	long count = call(__NR_ppoll, (long)&waiting, 1, (long)&bound, 0, 0);
	if (count <= 0)
		return count ? count : -ETIMEDOUT;
	return call(__NR_read, connection, (long)packet, size, 0, 0);
}

/* Whether the supervisor has noticed the waiting calls since the last time: it then touches the socket. It ends the
 * connections of calls that would wait in vain. */
static int may_wait(void)
{
	static __s64 before;
	struct statx found;
	__s64 touched = look(address.sun_path, &found) ? before : found.stx_mtime.tv_sec * 1000000000 + found.stx_mtime.tv_nsec;
	int is_new = touched != before;
	before = touched;
	return is_new;
}

/* Send the call of the plugin `name`; returns 0 or an error. */
static long request(long connection, const char *name)
{
	static char head[1024];
	static union {
		struct cmsghdr first;
		char room[CMSG_SPACE(3 * sizeof(int))];
	} control;
	const char *limit = head + sizeof head, *netns = value_of("CNI_NETNS=");
	struct statx found;

	char *end = append(head, limit, identity) + 1;
	end = append(end, limit, name) + 1;
	long mask = call(__NR_umask, 0, 0, 0, 0, 0);
	call(__NR_umask, mask, 0, 0, 0, 0);
	end = append_number(end, limit, mask) + 1;
	if (netns && !look(netns, &found)) {
		end = append_number(end, limit, found.stx_dev_minor);
		end = append_number(append(end, limit, ":"), limit, found.stx_ino);
	}
	*end++ = '\0';

	char **last = environment;
	while (*last)
		last++;
	size_t size = last == environment ? 0 : last[-1] + length(last[-1]) - environment[0];
	struct iovec parts[2] = {{head, end - head}, {environment[0], size}};
	int given[3] = {kept_stdin, 0, 2};
	given[1] = call(__NR_openat, AT_FDCWD, (long)".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0, 0);
	if (given[1] < 0)
		return given[1];
	control.first = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof given), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	copy((char *)CMSG_DATA(&control.first), (char *)given, sizeof given);
	struct msghdr message = {
		.msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control.room,
	};
	long sent = call(__NR_sendmsg, connection, (long)&message, MSG_NOSIGNAL, 0, 0);
	call(__NR_close, given[1], 0, 0, 0, 0);
	return sent < 0 ? sent : 0;
}

/* Let a worker serve the call of the plugin `name`. Returns only if none has; then the reason. If it is that there are no
 * workers at all, this call may start some after its reply. */
static char try_warm(const char *directory, const char *name)
{
	static char packet[PIECE + 1];
	struct ucred peer;
	unsigned int size = sizeof peer;
	char *end = said;

	if (value_of("RAILCNI_COLD="))
		return ASKED;
	if (call(__NR_geteuid, 0, 0, 0, 0, 0) || !identify(directory))
		return UNKNOWN;
	if (!keep_stdin())
		return LIMITED;
	long connection = call(__NR_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, 0, 0);
	long error = call(__NR_connect, connection, (long)&address, sizeof address, 0, 0);
	if (error)
		return error == -ENOENT || error == -ECONNREFUSED ? NONE_THERE : SILENT;
	error = call(__NR_getsockopt, connection, SOL_SOCKET, SO_PEERCRED, (long)&peer, (long)&size);
	if (error || peer.uid)
		return FOR_OTHERS;
	int waits = 0;
	may_wait();
	while ((error = receive(connection, packet, sizeof packet, HELLO_MS)) == -ETIMEDOUT && waits < MOST_WAITS && may_wait())
		waits++;
	if (error == -ETIMEDOUT && waits < MOST_WAITS) { /* so that no other call waits for them; a supervisor that runs turns it back */
		static char away[sizeof address.sun_path + 8];
		append(append(away, away + sizeof away, address.sun_path), away + sizeof away, ".away");
		call(__NR_renameat2, AT_FDCWD, (long)address.sun_path, AT_FDCWD, (long)away, 0);
	}
	char reason = error == -ETIMEDOUT ? SILENT : BUSY;
	if (error == 1 && packet[0] == 'h') {
		long count;
		reason = request(connection, name) ? TOO_LONG : ENDED;
		while (reason == ENDED && (count = receive(connection, packet, sizeof packet, REPLY_MS)) > 0) {
			if (packet[0] > '9')
				reason = packet[0];
			if (count - 1 > said + sizeof said - end)
				break;
			copy(end, packet + 1, count - 1);
			end += count - 1;
			if (packet[0] == '0' || packet[0] == '1')
				answer(said, end - said, packet[0] != '0');
		}
	}
	call(__NR_close, connection, 0, 0, 0, 0); /* which ends the call of a worker that is still at work */
	return reason;
}

/* --- cold --- */

/* Append the reason of a cold call to the file of them, which begins anew when it is long. No failure matters. */
static void note(char reason)
{
	long before[4], fd;

	while ((fd = call(__NR_openat, AT_FDCWD, (long)"/run/railcni/warm/cold",
			  O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600, 0)) == -ENOENT)
		if (call(__NR_mkdirat, AT_FDCWD, (long)"/run/railcni", 0700, 0, 0) &&
		    call(__NR_mkdirat, AT_FDCWD, (long)"/run/railcni/warm", 0700, 0, 0))
			break;
	if (fd < 0)
		return;
	if (call(__NR_lseek, fd, 0, SEEK_END, 0, 0) >= MOST_COLD)
		call(__NR_ftruncate, fd, 0, 0, 0, 0);
	call(__NR_rt_sigaction, SIGXFSZ, (long)ignored, (long)before, 8, 0);
	call(__NR_write, fd, (long)&reason, 1, 0, 0);
	call(__NR_rt_sigaction, SIGXFSZ, (long)before, 0, 8, 0);
	call(__NR_close, fd, 0, 0, 0, 0);
}

/* The bundle's path without links, in `root`. An upgrade may change the link `current` during a call: with a path through
 * this link, later imports would load another version. This needs no /proc. */
static long find_root(char *directory, char *root)
{
	long here = call(__NR_openat, AT_FDCWD, (long)".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0, 0);
	append(directory + length(directory), directory + LONGEST_PATH, "..");
	long error = here < 0 ? here : call(__NR_chdir, (long)directory, 0, 0, 0, 0);
	if (error < 0)
		return error;
	error = call(__NR_getcwd, (long)root, LONGEST_PATH, 0, 0, 0);
	long back = call(__NR_fchdir, here, 0, 0, 0, 0);
	return error < 0 ? error : back;
}

/* `root` followed by `tail`, in `path`. */
static char *below(const char *root, const char *tail, char *path)
{
	append(append(path, path + LONGEST_PATH, root), path + LONGEST_PATH, tail);
	return path;
}

/* Serve the call of the executable at `path`: warm, or by an exec of the interpreter. After a failure, `path` is the file
 * that cannot be used. */
static long run(char *path, long count, char **given)
{
	char name[LONGEST_PATH], root[LONGEST_PATH], script[LONGEST_PATH];
	char *arguments[count + 16];
	size_t n = 0;

	long error = follow(path, name);
	if (error < 0)
		return error;
	int is_python = same(name, "python3");
	int is_plugin = !is_python && !same(name, "railcni") && !same(name, "kubectl-railcni");
	const char *verb = value_of("CNI_COMMAND=");
	if (is_plugin && verb && same(verb, "VERSION"))
		answer(VERSION_REPLY, sizeof VERSION_REPLY - 1, 0);
	char reason = is_plugin && verb && *verb ? have_streams() ? try_warm(path, name) : LIMITED : 0;
	if (reason)
		note(reason);
	if (kept_stdin >= 0) {
		call(__NR_lseek, kept_stdin, 0, 0, 0, 0);
		call(__NR_dup3, kept_stdin, 0, 0, 0, 0);
		call(__NR_close, kept_stdin, 0, 0, 0, 0); /* the caller may have left descriptors for no more */
		kept_stdin = -1;
	}
	have_no_directory();
	for (char **entry = environment; *entry && is_plugin; entry++)
		if (after("LD_", *entry))
			**entry = '!';

	error = find_root(path, root);
	if (error < 0)
		return error;
	char *tail = below(root, "/libexec/", script) + length(script);
#ifdef LOADER
	char libraries[LONGEST_PATH], shown[LONGEST_PATH], python[LONGEST_PATH];
	arguments[n++] = below(root, "/lib/" LOADER, path);
	arguments[n++] = "--inhibit-cache"; /* the host's list of libraries, which need the host's C library */
	arguments[n++] = "--library-path";
	arguments[n++] = below(root, "/lib", libraries);
	arguments[n++] = "--argv0"; /* the interpreter finds its standard library from this path */
	arguments[n++] = below(root, "/bin/python3", shown);
	arguments[n++] = below(root, "/libexec/python3", python);
	if (!is_python) {
		arguments[n++] = "-IS";
		append(append(tail, script + sizeof script, name), script + sizeof script, ".pyc");
		arguments[n++] = script;
	}
#else
	append(tail, script + sizeof script, name);
	arguments[n++] = append(path, path + LONGEST_PATH, script) - length(script);
#endif
	if (reason == NONE_THERE)
		arguments[n++] = identity; /* cni/compiled/packed.py */
	for (long i = 1; i < count && !is_plugin; i++)
		arguments[n++] = given[i];
	arguments[n] = NULL;
	return call(__NR_execve, (long)path, (long)arguments, (long)environment, 0, 0);
}

/* `stack` is the stack of a new program: argc, the arguments, 0, the environment, 0, the auxiliary vector. In the vector,
 * AT_EXECFN is the executed path: this program's, or that of a script whose `#!` line names this program. */
__attribute__((used, noreturn)) void start(long *stack)
{
	long count = *stack;
	char **given = (char **)(stack + 1);
	environment = given + count + 1;
	char **end = environment;
	while (*end)
		end++;
	char executed[LONGEST_PATH], self[LONGEST_PATH];
	executed[0] = '\0';
	for (Elf64_auxv_t *entry = (Elf64_auxv_t *)(end + 1); entry->a_type != AT_NULL; entry++)
		if (entry->a_type == AT_EXECFN)
			append(executed, executed + sizeof executed, (const char *)entry->a_un.a_val);

	long error = run(executed, count, given);
	append(self, self + sizeof self, "/proc/self/exe");
	run(self, count, given);
	fail("this executable belongs to a bundle, and of that ", executed, -error,
	     "link to bin/ of a bundle, or install railcni again");
}
