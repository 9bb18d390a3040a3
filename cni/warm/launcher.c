/* The executables: bin/macvlan and the others, in a checkout and in a bundle, are copies of this program.
 *
 * A warm worker (cni/warm/worker.py) serves a call if it answers and nothing forbids this. Otherwise, and in every
 * doubt, a new Python serves the call: "cold". The launcher asks the worker over a SEQPACKET socket, whose name is made
 * of the digest of the compiled modules, the namespaces and the settings that both must share:
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
 * launcher ends first, the kernel kills the worker, so a call ends with the launcher's process, whether warm or cold.
 *
 * The cold path of a bundle: a node may have no Python, no shell, and not the C library that Python needs. The path of
 * the bundle is not known in advance, but a `#!` line and an ELF interpreter need absolute paths. So this program, which
 * needs only the kernel, finds the bundle from its own path and starts the bundle's dynamic loader with the bundle's
 * libraries and interpreter:
 *
 *     BUNDLE/lib/LOADER --inhibit-cache --library-path BUNDLE/lib --argv0 BUNDLE/bin/python3 BUNDLE/libexec/python3
 *         -IS BUNDLE/libexec/NAME.pyc ARGUMENTS...
 *
 * In a checkout this program starts the script libexec/NAME. It passes on the working directory and the environment, but
 * hides the caller's LD_ variables from the loader: they concern the host's libraries. cni/compiled/packed.py undoes
 * this. The program is linked statically, so that it needs no library of the host: by musl it adds 0.15 ms to a call.
 *
 * cc -DTAG='"cpython-311"' [-DLOADER='"ld-linux-x86-64.so.2"'] ...: with the flags in launcher.flags, by the Makefile and cni/dist/bundle.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/stat.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef STATX_MNT_ID
#error "needs the kernel's headers of Linux 5.8 or newer"
#endif

#define VERSION_REPLY /* as in cni/link/__init__.py */ \
	"{\"cniVersion\": \"1.1.0\", \"supportedVersions\": [\"0.1.0\", \"0.2.0\", \"0.3.0\", \"0.3.1\", \"0.4.0\", " \
	"\"1.0.0\", \"1.1.0\"]}\n"

enum {
	DIGEST_AT = 12288 - 32, DIGEST_SIZE = 32, /* where the pack has its digest: cni/compiled/pack.py */
	MOST_STDIN = (8 << 20) + 1,              /* as cni/link/run.py reads: one byte more than is accepted */
	HELLO_MS = 1000,                         /* no hello comes when the workers are busy or stopped */
	REPLY_MS = 300000,                       /* kubelet itself gives up after 240 s */
	MOST_REPLY = 1 << 20,
	PIECE = 1 << 16,
	MOST_COLD = 1 << 16,
	TAIL = 512, /* more than a folder of the bundle and the name of a file in it */
	LONGEST_PATH = PATH_MAX + TAIL,
};

/* Why a call is cold: letters in the file of cold calls. A worker sends two of them. cni/cli/warm.py explains them. */
enum {
	NONE_THERE = 'n', BUSY = 'b', SILENT = 's', ENDED = 'e', FOR_OTHERS = 'o', TOO_LONG = 'x', LIMITED = 'l', UNKNOWN = 'k',
	ASKED = 'c',
};

/* --- for warm and cold calls --- */

/* Whether `text` begins with `start`. */
static int begins(const char *text, const char *start)
{
	return !strncmp(text, start, strlen(start));
}

/* Append a text in printf's format to `text`, a buffer of `size` bytes. A text that does not fit is cut off. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size, const char *format, ...)
{
	size_t used = strlen(text);
	va_list values;

	va_start(values, format);
	vsnprintf(text + used, size - used, format, values);
	va_end(values);
}

/* Print that `path` cannot be used, between `before` and `remedy`: a CNI error for a runtime, else plain text. Exit. */
__attribute__((noreturn)) static void fail(const char *before, const char *path, int error, const char *remedy)
{
	char shown[LONGEST_PATH] = "";
	int is_runtime = getenv("CNI_COMMAND") != NULL;

	append(shown, sizeof shown, "%s", path);
	for (char *c = shown; *c; c++)
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
			*c = '?';
	dprintf(is_runtime ? 1 : 2, "%srailcni: %s%s cannot be used (errno %d): %s%s\n",
		is_runtime ? "{\"cniVersion\": \"1.1.0\", \"code\": 5, \"msg\": \"" : "", before, shown, error, remedy,
		is_runtime ? "\"}" : "");
	_exit(1);
}

/* Write `said` to stdout, and exit with `status`. If the write fails, exit with 1, so that the runtime sees this. */
__attribute__((noreturn)) static void answer(const char *said, size_t size, int status)
{
	signal(SIGPIPE, SIG_IGN);
	while (size) {
		ssize_t written = write(1, said, size);
		if (written < 0) {
			dprintf(2, "railcni: the reply cannot be written to stdout\n");
			_exit(1);
		}
		said += written;
		size -= written;
	}
	_exit(status);
}

/* --- warm --- */

static char identity[512];         /* of the callers that a worker serves: pack, namespaces, settings, root, powers */
static struct sockaddr_un address; /* where such workers listen */
static int kept_stdin = -1;        /* a memfd with all of stdin, once it was read */
static char said[MOST_REPLY];      /* stdout, as far as the worker has sent it */

static int look(const char *path, struct statx *found)
{
	return syscall(SYS_statx, AT_FDCWD, path, 0, STATX_INO | STATX_MNT_ID, found); /* musl 1.2.3 has no statx */
}

static int open_nothing(void)
{
	return open("/dev/null", O_PATH);
}

/* If stdin, stdout or stderr is closed, open it as a descriptor that cannot be read or written. Otherwise the next
 * opened file, such as the pack, would get the number. Returns 0 on a failure. */
static int have_streams(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open_nothing() < 0)
			return 0;
	return 1;
}

/* Replace a stdin that is a directory by an unreadable descriptor: with a directory, Python would exit without a reply. */
static void have_no_directory(void)
{
	struct stat found;
	if (fstat(0, &found) || !S_ISDIR(found.st_mode))
		return;
	int opened = open_nothing();
	dup2(opened, 0);
	close(opened);
}

/* A digest (FNV-1a) of the environment variables that the resolver and OpenSSL may read only once in a process. Workers
 * keep the values of the call that started them; callers with other values have other workers. Variables of the loader,
 * malloc and the clock change no result. */
static unsigned settings(void)
{
	static const char *const names[] = { /* as in start.py */
		"HOSTALIASES=", "LOCALDOMAIN=", "RES_OPTIONS=", "RESOLV_", "OPENSSL_", "SSL_CERT_DIR=", "SSL_CERT_FILE=",
	};
	unsigned sum = 0; /* of the entries' digests: Go lays out an environment in any order */
	for (char **entry = environ; *entry; entry++)
		for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
			const char *c = begins(*entry, names[i]) ? *entry : "";
			unsigned digest = *c ? 2166136261u : 0;
			for (; *c; c++)
				digest = (digest ^ (unsigned char)*c) * 16777619u;
			sum += digest;
		}
	return sum;
}

/* Fill `identity` and `address`. `root` is the folder of the bundle or checkout. Returns 0 on a failure: without /proc
 * or on an older kernel nothing distinguishes two namespaces. */
static int identify(const char *root)
{
	static const char *const namespaces[] = { /* the first two are in the name of the socket, with the settings */
		"/proc/self/ns/mnt", "/proc/self/ns/net", "/proc/self/ns/uts", "/proc/self/ns/user",
	};
	char path[LONGEST_PATH] = "", digest[DIGEST_SIZE];
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct powers[_LINUX_CAPABILITY_U32S_3];
	struct statx found;

	append(path, sizeof path, "%s/bin/modules." TAG, root);
	int pack = open(path, O_RDONLY | O_CLOEXEC);
	if (pack < 0)
		return 0;
	ssize_t size = pread(pack, digest, DIGEST_SIZE, DIGEST_AT);
	close(pack);
	if (size != DIGEST_SIZE)
		return 0;
	append(identity, sizeof identity, "%.*s", DIGEST_SIZE, digest);
	address.sun_family = AF_UNIX;
	for (size_t i = 0; i < sizeof namespaces / sizeof namespaces[0]; i++) {
		if (look(namespaces[i], &found))
			return 0;
		append(identity, sizeof identity, "-%llu", found.stx_ino);
		if (i == 1) {
			append(identity, sizeof identity, "-%u", settings());
			append(address.sun_path, sizeof address.sun_path, "/run/railcni/warm/%s.sock", identity);
		}
	}
	if (look("/", &found) || !(found.stx_mask & STATX_MNT_ID))
		return 0;
	append(identity, sizeof identity, "-%llu-%llu", found.stx_mnt_id, found.stx_ino);
	if (syscall(SYS_capget, &header, powers))
		return 0;
	for (size_t i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
		append(identity, sizeof identity, "-%u", powers[i].effective);
	return 1;
}

/* read(2) of stdin, which waits even if stdin is non-blocking. */
static ssize_t read_stdin(char *piece, size_t size)
{
	for (;;) {
		struct pollfd waiting = {0, POLLIN, 0};
		ssize_t count = read(0, piece, size);
		if (count >= 0 || (errno != EAGAIN && errno != EINTR))
			return count;
		if (errno == EAGAIN)
			poll(&waiting, 1, -1);
	}
}

/* Read stdin to its end into a memfd. Returns 0 if nothing was read: after a failure, or when the caller limits the
 * size of files and memfds. If only a part can be read, the call ends, since this part cannot be read again. */
static int keep_stdin(void)
{
	static const char again[] = "retry when the node has memory";
	static char piece[PIECE];
	struct rlimit most;
	ssize_t size, left = MOST_STDIN;

	if (getrlimit(RLIMIT_FSIZE, &most) || most.rlim_cur != RLIM_INFINITY)
		return 0;
	kept_stdin = memfd_create("stdin", MFD_CLOEXEC);
	if (kept_stdin < 0)
		return 0;
	while ((size = read_stdin(piece, left < PIECE ? left : PIECE)) > 0) {
		ssize_t written = write(kept_stdin, piece, size);
		if (written != size)
			fail("all of ", "stdin", written < 0 ? errno : ENOSPC, again);
		left -= size;
	}
	if (size == 0)
		return 1;
	if (left != MOST_STDIN)
		fail("all of ", "stdin", errno, again);
	close(kept_stdin);
	kept_stdin = -1;
	return 0;
}

/* Read the next packet of at most `size` bytes. Returns its size, 0 at the end, -1 on an error or after `ms`. */
static ssize_t receive(int connection, char *packet, size_t size, int ms)
{
	struct pollfd waiting = {connection, POLLIN, 0};
	return poll(&waiting, 1, ms) == 1 ? read(connection, packet, size) : -1;
}

/* Send the call of the plugin `name` to a worker. Returns 0 on a failure. */
static int request(int connection, const char *name)
{
	static char head[1024];
	static union {
		struct cmsghdr first;
		char room[CMSG_SPACE(3 * sizeof(int))];
	} control;
	const char *netns = getenv("CNI_NETNS");
	struct statx found;

	mode_t mask = umask(0);
	umask(mask);
	int size = snprintf(head, sizeof head - TAIL, "%s%c%s%c%u%c", identity, 0, name, 0, mask, 0);
	if (size >= (int)(sizeof head - TAIL))
		return 0;
	if (netns && !look(netns, &found))
		size += snprintf(head + size, TAIL, "%u:%llu", found.stx_dev_minor, found.stx_ino);

	char **last = environ;
	while (*last)
		last++;
	size_t environment = last == environ ? 0 : last[-1] + strlen(last[-1]) - environ[0];
	struct iovec parts[2] = {{head, size + 1}, {environ[0], environment}};
	int given[3] = {kept_stdin, open(".", O_PATH | O_DIRECTORY | O_CLOEXEC), 2};
	if (given[1] < 0)
		return 0;
	control.first = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof given), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.first), given, sizeof given);
	struct msghdr message = {
		.msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control.room,
	};
	ssize_t sent = sendmsg(connection, &message, MSG_NOSIGNAL);
	close(given[1]);
	return sent >= 0;
}

/* Let a worker serve the call of the plugin `name`, and exit. If no worker has served the call, return the reason. For
 * the reason NONE_THERE, this call may start workers after its reply. */
static char try_warm(const char *root, const char *name)
{
	static char packet[PIECE + 1];
	struct ucred peer;
	socklen_t size = sizeof peer;
	char *end = said, reason = SILENT;

	if (getenv("RAILCNI_COLD"))
		return ASKED;
	if (geteuid() || !identify(root))
		return UNKNOWN;
	if (!keep_stdin())
		return LIMITED;
	int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (connect(connection, (struct sockaddr *)&address, sizeof address)) {
		if (errno == EAGAIN) /* as many calls wait as the kernel's queue takes */
			return BUSY;
		return errno == ENOENT || errno == ECONNREFUSED ? NONE_THERE : SILENT;
	}
	if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid)
		return FOR_OTHERS;
	if (receive(connection, packet, sizeof packet, HELLO_MS) == 1 && packet[0] == 'h') {
		ssize_t count;
		reason = request(connection, name) ? ENDED : TOO_LONG;
		while (reason == ENDED && (count = receive(connection, packet, sizeof packet, REPLY_MS)) > 0) {
			if (packet[0] > '9')
				reason = packet[0];
			if (count - 1 > said + sizeof said - end)
				break;
			memcpy(end, packet + 1, count - 1);
			end += count - 1;
			if (packet[0] == '0' || packet[0] == '1')
				answer(said, end - said, packet[0] != '0');
		}
	}
	close(connection); /* a worker that is still at work is killed by this */
	return reason;
}

/* --- cold --- */

/* Append the reason of a cold call to the file of cold calls. A long file is emptied first. Failures are ignored. */
static void note(char reason)
{
	int fd;

	while ((fd = open("/run/railcni/warm/cold", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)) < 0)
		if (errno != ENOENT || (mkdir("/run/railcni", 0700) && mkdir("/run/railcni/warm", 0700)))
			return;
	void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
	if (lseek(fd, 0, SEEK_END) < MOST_COLD || !ftruncate(fd, 0))
		dprintf(fd, "%c", reason);
	signal(SIGXFSZ, before);
	close(fd);
}

/* Fill `root`, the parent of the folder of the executable at `path`, and its `name`, without links. Returns 0 on a
 * failure. An upgrade may change the link `current` during a call: imports through it would load another version. */
static int find_root(const char *path, char *root, char *name)
{
	if (!realpath(path, root))
		return 0;
	char *slash = strrchr(root, '/');
	strcpy(name, slash + 1);
	*slash = '\0';
	slash = strrchr(root, '/');
	*(slash ? slash : root) = '\0';
	return 1;
}

/* Serve the call of the executable at `path`: warm, or by an exec of the interpreter. Returns only after a failure. Then
 * `path`, which has room for LONGEST_PATH bytes, names the file that cannot be used, and errno has the reason. */
static void run(char *path, int count, char **given)
{
	char root[PATH_MAX], name[NAME_MAX + 1];
	char *arguments[count + 16];
	size_t n = 0;

	if (!find_root(path, root, name))
		return;
	int is_python = !strcmp(name, "python3");
	int is_plugin = !is_python && strcmp(name, "railcni") && strcmp(name, "kubectl-railcni");
	const char *verb = getenv("CNI_COMMAND");
	if (is_plugin && verb && !strcmp(verb, "VERSION"))
		answer(VERSION_REPLY, sizeof VERSION_REPLY - 1, 0);
	char reason = is_plugin && verb && *verb ? have_streams() ? try_warm(root, name) : LIMITED : 0;
	if (reason)
		note(reason);
	if (kept_stdin >= 0) {
		lseek(kept_stdin, 0, SEEK_SET);
		dup2(kept_stdin, 0);
		close(kept_stdin); /* the caller's limit may allow no further descriptor */
		kept_stdin = -1;
	}
	have_no_directory();
	for (char **entry = environ; *entry && is_plugin; entry++)
		if (begins(*entry, "LD_"))
			**entry = '!';

#ifdef LOADER
	char libraries[LONGEST_PATH] = "", shown[LONGEST_PATH] = "", python[LONGEST_PATH] = "", script[LONGEST_PATH] = "";
	append(libraries, sizeof libraries, "%s/lib", root);
	append(shown, sizeof shown, "%s/bin/python3", root);
	append(python, sizeof python, "%s/libexec/python3", root);
	append(script, sizeof script, "%s/libexec/%s.pyc", root, name);
	snprintf(path, LONGEST_PATH, "%s/lib/" LOADER, root);
	arguments[n++] = path;
	arguments[n++] = "--inhibit-cache"; /* the host's list of libraries, which need the host's C library */
	arguments[n++] = "--library-path";
	arguments[n++] = libraries;
	arguments[n++] = "--argv0"; /* the interpreter finds its standard library from this path */
	arguments[n++] = shown;
	arguments[n++] = python;
	if (!is_python) {
		arguments[n++] = "-IS";
		arguments[n++] = script;
	}
#else
	snprintf(path, LONGEST_PATH, "%s/libexec/%s", root, name);
	arguments[n++] = path;
#endif
	if (reason == NONE_THERE)
		arguments[n++] = identity; /* cni/compiled/packed.py */
	for (int i = 1; i < count && !is_plugin; i++)
		arguments[n++] = given[i];
	arguments[n] = NULL;
	execve(path, arguments, environ);
}

/* AT_EXECFN is the path of this program, or of an executed script whose `#!` line names this program. */
int main(int count, char **given)
{
	char executed[LONGEST_PATH] = "", self[LONGEST_PATH] = "/proc/self/exe";

	append(executed, sizeof executed, "%s", (const char *)getauxval(AT_EXECFN));
	run(executed, count, given);
	int error = errno;
	run(self, count, given);
	fail("this executable belongs to a bundle, and of that ", executed, error,
	     "link to bin/ of a bundle, or install railcni again");
}
