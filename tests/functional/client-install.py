#!/usr/bin/python3
"""What `meson install` leaves is enough for a program: header, libraries, pkg-config file, manual.

    client-install.py GMBLOCK BUILD_FOLDER SOURCE_FOLDER [COMPILER...]
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

GMBLOCK = BUILD = SOURCE = ""
COMPILER = []
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]

# Loads the library, closes a client whose host name is being resolved, and unloads the library.
PLUGIN_HOST = r"""
#include <dlfcn.h>
#include <gmblock/gmblock.h>
#include <netdb.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/stat.h>

#define LOAD(name) __typeof__(name) *name##_ = (__typeof__(name) *)find(library, #name)

static sem_t begun, go_on;

int getaddrinfo(const char *restrict host, const char *restrict port,
                const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
    (void)host, (void)port, (void)out;
    if ((hints->ai_flags & AI_NUMERICHOST) == 0) {
        sem_post(&begun);
        sem_wait(&go_on);
    }
    return EAI_NONAME;
}

static void (*find(void *library, const char *name))(void)
{
    union { void *object; void (*function)(void); } symbol = { dlsym(library, name) };

    return symbol.function;
}

int main(int argc, char **argv)
{
    void *library = dlopen(argv[argc - 1], RTLD_NOW);
    LOAD(gmb_queue_create);
    LOAD(gmb_queue_destroy);
    LOAD(gmb_queue_wait);
    LOAD(gmb_open_start);
    LOAD(gmb_close);
    struct gmb_queue *queue;
    struct gmb_client *client;
    struct stat threads;

    if (gmb_queue_create_(NULL, &queue, NULL) != 0 ||
        gmb_open_start_(queue, "nbd://slow.example/", NULL, &client, NULL) != 0)
        return 1;
    while (sem_trywait(&begun) != 0)
        gmb_queue_wait_(queue, 10);
    gmb_close_(client);
    gmb_queue_destroy_(queue);
    dlclose(library);
    sem_post(&go_on);
    /* The thread returns to the library and ends: two links and one for each thread. */
    while (stat("/proc/self/task", &threads) == 0 && threads.st_nlink > 3)
        sched_yield();
    puts("resolved");
    return 0;
}
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def manual_example(page="gmblock.3"):
    """The program among the examples of a manual page."""
    with open(f"{SOURCE}/docs/man/{page}", encoding="utf-8") as file:
        examples = file.read().split(".Sh EXAMPLES")[1]
    texts = re.findall(r"\.Bd -literal[^\n]*\n(.*?)\.Ed", examples, re.S)
    return next(text for text in texts if "int main(" in text).replace("\\e", "\\")


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in ("meson", "pkg-config"):
            if shutil.which(tool) is None:
                raise unittest.SkipTest(f"{tool} is not installed")
        folder = tempfile.TemporaryDirectory(prefix="gmblock-install-")
        cls.addClassCleanup(folder.cleanup)
        cls.root = os.path.join(folder.name, "root")
        cls.folder = folder.name
        run("meson", "install", "--no-rebuild", "--quiet", "-C", BUILD, "--destdir", cls.root)
        cls.libdir = os.path.dirname(cls.find("libgmblock.so.0"))
        cls.environment = {
            **os.environ, "PKG_CONFIG_SYSROOT_DIR": cls.root,
            "PKG_CONFIG_PATH": os.path.dirname(cls.find("gmblock.pc"))}

    @classmethod
    def find(cls, name):
        for folder, _, names in os.walk(cls.root):
            if name in names:
                return os.path.join(folder, name)
        raise AssertionError(f"{name} was not installed")

    def flags(self, *options, library="gmblock"):
        return run("pkg-config", *options, library, env=self.environment).split()

    def build(self, name, text, *arguments, compiler=None):
        source = os.path.join(self.folder, name)
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
        program = source + ".program"
        run(*(compiler or COMPILER), *STRICT, source, *arguments, "-o", program)
        return program

    def first_sector(self, program, **environment):
        """What the manual's program prints about a disk that we know."""
        image = os.path.join(self.folder, "image")
        content = bytes(range(256)) * 16
        with open(image, "wb") as file:
            file.write(content)
        done = subprocess.run(
            [GMBLOCK, "serve", image, "--listen", f"nbd+unix:///?socket={self.folder}/s",
             "--run", f'exec "{program}" "$uri" > {self.folder}/out'],
            capture_output=True, text=True, check=False, env={**os.environ, **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.folder, "out"), "rb") as file:
            self.assertEqual(file.read(), content[:512])

    def test_the_manuals_program_with_the_shared_library(self):
        program = self.build("first.c", manual_example(), "-std=c11",
                             *self.flags("--cflags", "--libs"))
        self.first_sector(program, LD_LIBRARY_PATH=self.libdir)

    def test_the_manuals_program_with_the_static_library(self):
        flags = self.flags("--static", "--cflags", "--libs")
        self.assertIn("-lgmblock", flags)
        flags[flags.index("-lgmblock")] = "-l:libgmblock.a"
        self.first_sector(self.build("static.c", manual_example(), "-std=c17", *flags))

    def test_the_manuals_program_that_opens_several_disks(self):
        program = self.build("several.c", manual_example("gmb_client.3"), "-std=c17",
                             *self.flags("--cflags", "--libs"))
        done = subprocess.run(
            [GMBLOCK, "serve", "memory:3M", "--listen", f"nbd+unix:///?socket={self.folder}/s",
             "--run", f'exec "{program}" "$uri" nbd+unix:///?socket=/nonexistent/s "$uri" '
             f'> {self.folder}/out'],
            capture_output=True, text=True, check=False,
            env={**os.environ, "LD_LIBRARY_PATH": self.libdir})
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.folder, "out"), encoding="utf-8") as file:
            lines = sorted(file.read().splitlines())
        self.assertEqual(len(lines), 3)
        self.assertIn("/nonexistent/s: cannot connect: ", lines[0])
        self.assertTrue(all(line.endswith(": 3145728 bytes") for line in lines[1:]), lines)

    def test_a_program_may_unload_it_while_a_name_is_resolved(self):
        """The thread that resolves the name runs on after dlclose()."""
        program = self.build("plugin.c", PLUGIN_HOST, "-std=gnu17", *self.flags("--cflags"),
                             "-rdynamic", "-ldl", "-pthread")
        self.assertEqual(run(program, self.find("libgmblock.so.0")), "resolved\n")

    def test_the_header_is_cpp(self):
        if shutil.which("g++") is None:
            self.skipTest("g++ is not installed")
        for standard in ("c++11", "c++20"):
            program = self.build(
                "header.cc", '#include <gmblock/gmblock.h>\n#include <cstdio>\n'
                'int main() { std::puts(gmb_version()); gmb_request r{}; return r.result; }\n',
                f"-std={standard}", *self.flags("--cflags", "--libs"),
                *(flag for flag in COMPILER if flag.startswith("-fsanitize")), compiler=["g++"])
            version = run(program, env={**os.environ, "LD_LIBRARY_PATH": self.libdir}).strip()
            self.assertEqual(version, run("pkg-config", "--modversion", "gmblock",
                                          env=self.environment).strip())

    def test_headers_and_libraries_tell_their_version(self):
        for library, prefix in (("gmblock", "gmb"), ("clan", "clan")):
            if not os.path.exists(os.path.join(self.environment["PKG_CONFIG_PATH"], library + ".pc")):
                self.skipTest(f"there is no {library}")
            number = run("pkg-config", "--modversion", library, env=self.environment).strip()
            later = ", ".join(number.split(".")[:2] + [str(int(number.split(".")[2]) + 1)])
            text = (f"#include <gmblock/{library}.h>\n#include <stdio.h>\n"
                    "#if !CHECK(VERSION_NOW) || CHECK(LATER)\n#error version\n#endif\n"
                    f"int main(void)\n{{\n\tputs({prefix}_version());\n\treturn 0;\n}}\n")
            text = text.replace("CHECK", prefix.upper() + "_CHECK_VERSION").replace(
                "VERSION_NOW", number.replace(".", ", ")).replace("LATER", later)
            program = self.build(library + "-version.c", text, "-std=c17", *self.flags(
                "--cflags", "--libs", library=library))
            self.assertEqual(run(program, env={**os.environ, "LD_LIBRARY_PATH": self.libdir}), number + "\n")

    def exported(self):
        names = run("nm", "-D", "--defined-only", self.find("libgmblock.so.0"))
        return {line.split()[-1].split("@")[0] for line in names.splitlines()}

    def declared(self, left_out="static inline|typedef"):
        """Functions that the header declares, without inline ones and the types of callbacks."""
        header = run(*COMPILER, "-E", "-P", self.find("gmblock.h"))
        header = re.sub(rf"\b({left_out}) [^({{;]*\([^)]*\)", "", header)
        return set(re.findall(r"\b(gmb_\w+)\s*\((?!\*)", header))

    def test_what_is_exported_is_what_the_header_declares(self):
        self.assertGreater(len(self.declared()), 30)
        self.assertEqual(self.exported() - {"GMBLOCK_0.1"}, self.declared())

    def test_the_static_library_defines_nothing_else(self):
        names = run("nm", "--extern-only", "--defined-only", self.find("libgmblock.a"))
        found = {line.split()[-1] for line in names.splitlines() if len(line.split()) == 3}
        self.assertEqual({name for name in found if not name.startswith("__")}, self.declared())

    def test_the_static_library_survives_link_time_optimization(self):
        if run(COMPILER[0], "--version").split()[0] not in ("gcc", "cc"):
            self.skipTest("clang has LTO with lld only")
        sources = {"outer": "__attribute__((visibility(\"hidden\"))) int inner(void);\n"
                            "int gmb_outer(void)\n{\n\treturn inner() + 1;\n}\n",
                   "inner": "__attribute__((visibility(\"hidden\"))) int inner(void)\n{\n\treturn 1;\n}\n"
                            "int clan_inner(void)\n{\n\treturn 2;\n}\n"}
        archives = []
        for name, text in sources.items():
            stem = os.path.join(self.folder, name)
            with open(stem + ".c", "w", encoding="utf-8") as file:
                file.write(text)
            run(COMPILER[0], "-O2", "-flto", "-c", stem + ".c", "-o", stem + ".o")
            run("gcc-ar", "rcs", stem + ".a", stem + ".o")
            archives.append(stem + ".a")
        library = os.path.join(self.folder, "libwith-lto.a")
        run(f"{SOURCE}/scripts/static-library.sh", library, COMPILER[0], "--", *archives)
        names = run("nm", "--extern-only", "--defined-only", library)
        self.assertEqual([line.split()[-1] for line in names.splitlines() if len(line.split()) == 3],
                         ["gmb_outer"])

    def test_every_function_has_a_manual_page(self):
        for name in sorted(self.declared("typedef")):
            page = self.find(name + ".3")
            with open(page, encoding="utf-8") as file:
                text = file.read()
            self.assertRegex(text, rf"(?m)^\.Nm {name}\b", name)
            self.assertRegex(text, rf"(?m)^\.F[no] {name}\b", name)
            self.assertFalse(os.path.islink(page) and os.path.isabs(os.readlink(page)))

    def test_every_constant_and_member_is_in_the_manual(self):
        with open(self.find("gmblock.h"), encoding="utf-8") as file:
            header = file.read()
        manual = ""
        for page in ("gmblock", "gmb_queue", "gmb_client", "gmb_request", "gmb_blocking",
                     "gmb_buffer", "gmb_send_file"):
            with open(self.find(page + ".3"), encoding="utf-8") as file:
                manual += file.read()
        constants = set(re.findall(r"\bGMB_[A-Z_]+\b", header)) - {"GMB_"}
        missing = {name for name in constants if name not in manual}
        self.assertEqual(missing, set())
        for struct in ("gmb_options", "gmb_info", "gmb_stats", "gmb_queue_options", "gmb_tls_settings",
                       "gmb_export"):
            body = re.search(rf"struct {struct} {{(.*?)\n}};", header, re.S).group(1)
            body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
            for member in re.findall(r"(\w+)(?:;|\)\()", body):
                self.assertIn(member, manual, f"{struct}.{member}")


if __name__ == "__main__":
    GMBLOCK, BUILD, SOURCE = (os.path.realpath(path) for path in sys.argv[1:4])
    COMPILER = sys.argv[4:]
    del sys.argv[1:]
    unittest.main(verbosity=2)
