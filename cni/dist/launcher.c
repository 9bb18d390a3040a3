/* The executables of a bundle: bin/macvlan, bin/railcni, bin/python3 and the rest are copies of this one program.
 *
 * A node has no Python, and perhaps neither a shell nor the C library that Python needs; and nobody knows where the
 * bundle will lie, while both a `#!` line and an ELF interpreter are absolute paths. So this program, which needs
 * nothing but the kernel, finds the bundle from its own path and starts the bundle's dynamic loader with the bundle's
 * libraries and interpreter:
 *
 *     BUNDLE/lib/LOADER --inhibit-cache --library-path BUNDLE/lib --argv0 BUNDLE/bin/python3 BUNDLE/libexec/python3
 *         -IS BUNDLE/libexec/NAME.pyc ARGUMENTS...
 *
 * The environment and the working directory are passed on as they came. Linked statically without a C library it adds
 * 0.05 ms to a call; with glibc's it would add 0.4, as a shell script 0.5.
 *
 * cc -DLOADER='"ld-linux-x86-64.so.2"' ... : see compile_launcher in bundle.py.
 */
#define _GNU_SOURCE
#include <asm/unistd.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>

enum { LONGEST_PATH = 4096, MOST_LINKS = 40 };

/* --- what a C library would do --- */

#if defined(__x86_64__)
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call start\n");

static long call(long number, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n_start: mov x0, sp\n and sp, x0, #-16\n b start\n");

static long call(long number, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
#else
#error "a bundle is made for x86_64 and aarch64"
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

/* Write `text` at `end` as far as there is room before `limit`, and return the new end. */
static char *append(char *end, const char *limit, const char *text)
{
	while (*text && end < limit - 1)
		*end++ = *text++;
	*end = '\0';
	return end;
}

/* --- the launcher --- */

static char **environment;

static int called_by_a_runtime(void)
{
	for (char **entry = environment; *entry; entry++) {
		const char *wanted = "CNI_COMMAND=", *found = *entry;
		while (*wanted && *wanted == *found)
			wanted++, found++;
		if (!*wanted)
			return 1;
	}
	return 0;
}

/* Say that `path` cannot be used, to a runtime in its protocol, to a person in words; and exit. */
static void fail(const char *path, long error)
{
	char text[LONGEST_PATH + 512], number[8], *digits = number + sizeof number - 1, *end = text;
	const char *limit = text + sizeof text;
	int runtime = called_by_a_runtime();

	*digits = '\0';
	do
		*--digits = (char)('0' + error % 10);
	while (error /= 10);
	if (runtime)
		end = append(end, limit, "{\"cniVersion\": \"1.1.0\", \"code\": 5, \"msg\": \"");
	end = append(end, limit, "railcni: this executable belongs to a bundle, and of that ");
	char *inserted = end;
	end = append(end, limit - 128, path);
	for (char *c = inserted; c < end; c++)
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
			*c = '?';
	end = append(end, limit, " cannot be used (errno ");
	end = append(end, limit, digits);
	end = append(end, limit, "): link to bin/ of a bundle, or install railcni anew");
	end = append(end, limit, runtime ? "\"}\n" : "\n");
	call(__NR_write, runtime ? 1 : 2, (long)text, end - text, 0);
	call(__NR_exit, 1, 0, 0, 0);
}

/* Cut `path` after its last "/" and return what stood behind it, as a copy in `name`; "./" is where there is none. */
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
 * Returns 0 or an error, negative, as all that follows here. */
static long follow(char *path, char *name)
{
	char target[LONGEST_PATH];
	for (int links = 0; links < MOST_LINKS; links++) {
		long size = call(__NR_readlinkat, AT_FDCWD, (long)path, (long)target, sizeof target - 1);
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

/* The bundle's path without links, in `root`. An upgrade turns the link `current` while we run: with a path through
 * it, the modules that are imported later would be those of another version. /proc is not needed for this. */
static long find_root(char *directory, char *root)
{
	long here = call(__NR_openat, AT_FDCWD, (long)".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	append(directory + length(directory), directory + LONGEST_PATH, "..");
	long error = here < 0 ? here : call(__NR_chdir, (long)directory, 0, 0, 0);
	if (error < 0)
		return error;
	error = call(__NR_getcwd, (long)root, LONGEST_PATH, 0, 0);
	long back = call(__NR_fchdir, here, 0, 0, 0);
	return error < 0 ? error : back;
}

/* `root` followed by `tail`, in `path`. */
static char *below(const char *root, const char *tail, char *path)
{
	append(append(path, path + LONGEST_PATH, root), path + LONGEST_PATH, tail);
	return path;
}

/* Become the interpreter of the bundle to which the executable at `path` belongs. When that fails, `path` is the file
 * that cannot be used. */
static long run(char *path, long count, char **given)
{
	char name[LONGEST_PATH], root[LONGEST_PATH];
	char libraries[LONGEST_PATH], shown[LONGEST_PATH], python[LONGEST_PATH], script[LONGEST_PATH];
	char *arguments[count + 16];
	size_t n = 0;

	long error = follow(path, name);
	if (error >= 0)
		error = find_root(path, root);
	if (error < 0)
		return error;
	arguments[n++] = below(root, "/lib/" LOADER, path);
	arguments[n++] = "--inhibit-cache"; /* the host's list of libraries, which are for the host's C library */
	arguments[n++] = "--library-path";
	arguments[n++] = below(root, "/lib", libraries);
	arguments[n++] = "--argv0"; /* the interpreter finds its standard library from this path */
	arguments[n++] = below(root, "/bin/python3", shown);
	arguments[n++] = below(root, "/libexec/python3", python);
	if (!same(name, "python3")) {
		arguments[n++] = "-IS";
		char *tail = below(root, "/libexec/", script) + length(script);
		append(append(tail, script + sizeof script, name), script + sizeof script, ".pyc");
		arguments[n++] = script;
	}
	for (long i = 1; i < count; i++)
		arguments[n++] = given[i];
	arguments[n] = NULL;
	return call(__NR_execve, (long)path, (long)arguments, (long)environment, 0);
}

/* `stack` is as the kernel leaves it to a new program: argc, the arguments, 0, the environment, 0, the auxiliary
 * vector, in which AT_EXECFN is the path that was executed: ours, or that of a script whose `#!` line names us. */
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
	fail(executed, -error);
	for (;;)
		;
}
