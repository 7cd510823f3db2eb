#!/usr/bin/python3
"""The commands of README.md and the manual pages.

Pages with recipes are run as they stand: each block of a section by the shell, in order, in one folder
for each section. The port is one that is free; a block that ends by serving goes on in the background
once the server is ready. A block that cannot be run has a comment before it that says what it is, and
why:

    .\\" not run: REASON    its lines are a shell's, and gmblock knows their options
    .\\" file: NAME         written into the folder, for the blocks after it
    .\\" xml: REASON        well-formed; the same with yaml

The examples of the other pages and of README.md are run in order, each page in namespaces of its own,
where hosts and paths have the names of the examples. What needs more than that is run by another test,
which is named below.

All examples, also those of --help, are checked against the tables of options as well: gmblock reads its
command line up to --help, and refuses what it does not know on the way.
"""
import os
import re
import shlex
import shutil
import subprocess
from xml.etree import ElementTree

import ports
import support
import tls_tool
from pages import PAGES, literal, read, sections

ROOT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../..")
PORT = "10809"
SECONDS = 120
TOOLS = ("certtool", "psktool", "nbdinfo", "qemu-img", "nbdkit", "qemu-system-x86_64")
SERVES = re.compile(r"gmblock serve (?!--check)")
# A guest that only opens its disk, and ends.
GUEST = ("qemu-system-x86_64 ", "echo quit | qemu-system-x86_64 -display none -S -monitor stdio ")
COMMAND = re.compile(r"(?:^|[|&;!]\s*|\$\s+)(?:sudo )?(?:build/)?gmblock [a-z]")


def commands(text):
    """The command lines of gmblock in a shell's text, as lists of words."""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"^\s*[$#] (?=\S)", "", line.strip())
        if not COMMAND.search(line):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            if not re.fullmatch(r"[();<>|&]+", word):
                words.append(word)
                continue
            while words and words[0] in ("!", "sudo", "exec"):
                words.pop(0)
            # What follows two hyphens is the command of a server, or of a program.
            while words and words[0] in ("gmblock", "build/gmblock"):
                own = words.index("--") if "--" in words else len(words)
                yield words[1:own]
                words = words[own + 1:]
            # The name of a file follows.
            words = ["file of"] if "<" in word or ">" in word else []


class Checks(support.Case):
    def check_options(self, text, least=1):
        count = 0
        for words in commands(text):
            count += 1
            done = subprocess.run(
                [support.program(), *words, "--help"], capture_output=True, text=True, check=False,
                stdin=subprocess.DEVNULL, timeout=SECONDS)
            self.assertEqual(done.returncode, 0, f"gmblock {' '.join(words)}\n{done.stderr}")
        self.assertGreaterEqual(count, least, text)


class Recipes(Checks):
    """Pages whose sections are run."""

    def setUp(self):
        super().setUp()
        # The program under its own name, as the pages call it.
        programs = self.path("bin")
        os.mkdir(programs)
        os.symlink(support.program(), os.path.join(programs, "gmblock"))
        self.environment = dict(
            os.environ, PATH=f"{programs}:{os.environ['PATH']}", HOME=self.folder)

    def shell(self, block, folder, port):
        return ["sh", "-e", "-c", block.replace(PORT, port).replace(*GUEST)], {
            "cwd": folder, "env": self.environment, "text": True, "stdin": subprocess.DEVNULL}

    def run_block(self, block, folder, port):
        command, options = self.shell(block, folder, port)
        done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS, **options)
        self.assertEqual(done.returncode, 0, f"{block}\n{done.stdout}\n{done.stderr}")

    def serve(self, block, folder, port):
        """The block ends with the server, which goes on. Returns what ends it."""
        at = list(SERVES.finditer(block))[-1].start()
        self.run_block(block[:at], folder, port)
        command, options = self.shell("exec " + block[at:], folder, port)
        server = subprocess.Popen(  # pylint: disable=consider-using-with
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

        def end():
            server.kill()
            return server.communicate()

        line = server.stdout.readline()
        if not line:
            self.fail(f"{block}\n{end()[1]}")
        self.assertIn(f":{port}" if PORT in block else "?socket=", line)
        return end

    def look_at(self, mark, block, folder):
        """A block that is not run."""
        kind, separator, words = mark.partition(": ")
        self.assertTrue(separator and words, mark)
        if kind == "file":
            with open(os.path.join(folder, words), "w", encoding="utf-8") as file:
                file.write(block)
            options = dict(line.split("=", 1) for line in block.splitlines() if "OPTIONS=" in block)
            if options:
                self.check_options(f"gmblock attach {options['OPTIONS']} {options['URI']}")
        elif kind == "xml":
            ElementTree.fromstring(block)
        elif kind == "yaml":
            self.check_yaml(block)
        else:
            self.assertEqual(kind, "not run", mark)
            done = subprocess.run(["sh", "-n", "-c", block], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, f"{block}\n{done.stderr}")
            self.check_options(block, 0)

    def check_yaml(self, block):
        try:
            import yaml  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("python3-yaml is not installed")
        for document in yaml.safe_load_all(block):
            self.assertLessEqual({"apiVersion", "kind", "metadata", "spec"}, set(document))

    def run_section(self, title, blocks):
        text = "\n".join(block for _, block in blocks)
        for tool in TOOLS:
            if tool in text and shutil.which(tool) is None:
                self.skipTest(f"{tool} is not installed")
        folder = self.path(title.replace(" ", "-").lower())
        os.mkdir(folder)
        port = str(ports.free())
        ends = []
        try:
            for mark, block in blocks:
                if mark:
                    self.look_at(mark, block, folder)
                elif SERVES.search(block):
                    ends.append(self.serve(block, folder, port))
                else:
                    self.run_block(block, folder, port)
        finally:
            for end in ends:
                end()

    def run_page(self, page, pattern, least):
        found = sections(page, pattern)
        self.assertGreaterEqual(len(found), least)
        for title, blocks in found.items():
            with self.subTest(page=page, section=title):
                self.run_section(title, blocks)

    def test_tls(self):
        self.run_page("gmblock-tls.7", "HOW TO [^\n]*", 2)

    def test_cookbook(self):
        self.run_page("gmblock-cookbook.7", "[^\n]*", 10)
        for title, blocks in sections("gmblock-cookbook.7", "[^\n]*").items():
            for _, block in blocks:
                self.assertLess(block.count("\n"), 15, title)


# What the examples find on their machine, and its hosts.
MACHINE = r"""
mkdir etc work srv bin
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$PWD/etc,workdir=$PWD/work" /etc
mount --bind srv /srv
mount -t tmpfs tmpfs /run
ln -s "$GMBLOCK" bin/gmblock
ln -s "$GMBLOCK_PLOT" bin/gmblock-plot
PATH=$PWD/bin:$PATH
ip link set lo up
ip address add 192.0.2.1/32 dev lo
ip address add 192.0.2.2/32 dev lo
echo "127.0.0.1 localhost storage new
127.0.0.2 old" >/etc/hosts
servers=
number=0
serve() # COMMAND: in the background, until its URI is there
{
	number=$((number + 1))
	sh -c "exec $1" >out$number 2>err$number &
	server=$!
	servers="$servers $server"
	until [ -s out$number ]; do
		kill -0 $server || { cat err$number >&2; exit 1; }
		sleep 0.05
	done
}
end_servers() # in order, and well
{
	for server in $servers; do
		kill $server || : upgraded
		wait $server
	done
	servers=
}
storage()
{
	truncate -s 16M disk0.img disk1.img disk2.img
	serve "gmblock serve --listen nbd://127.0.0.1 --listen nbd://127.0.0.2 \
		--listen 'nbd+unix:///?socket=/run/gmblock.sock' \
		--export =disk0.img --export disk=disk1.img --export data=${data:-disk2.img}"
}
load()
{
	gmblock bench --rw read --bs 1M --depth 1 --rate requests=20 --seconds 1h nbd://storage/data \
		>/dev/null &
}
mkdir -p /etc/pki
mv pki /etc/pki/gmblock
truncate -s 16M disk.img /srv/sdb /srv/nvme0n1 /srv/md0 /srv/install.iso
"""

# What the examples of a page find beside that.
BEFORE = {
    "README.md, Use": "gmblock create --size=32M flash:data; data=flash:data; storage; load",
    "gmblock-bench.1": "storage",
    "gmblock-check.1": """
        truncate -s 1M /srv/golden.img
        gmblock serve --listen 'nbd+unix:///?socket=s' --run true \\
            --export =/srv/golden.img,overlay=vm1.overlay""",
    "gmblock-copy.1": "storage",
    "gmblock-export.1": """
        mkdir /srv/images; truncate -s 1M /srv/images/guest7.img
        serve 'gmblock serve null:1M --export-folder /srv/images'""",
    "gmblock-fence.1": """
        echo '{nodes: [{name: alpha, uid: 1}, {name: beta, uid: 2}], exports: [{name: disk1, path: "null:1M"}]}' >conf
        serve 'gmblock serve --config conf --state-folder .'""",
    "gmblock-info.1": "storage",
    "gmblock-list.1": "storage",
    "gmblock-plot.1": "storage; load",
    "gmblock-push.1": """
        truncate -s 16M a.img b.img c.img
        ip address add 192.0.2.3/32 dev lo
        qemu-nbd --fork --persistent --bind=192.0.2.3 --export-name=disk --format=raw c.img
        truncate -s 16M d.img
        ip address add 192.0.2.4/32 dev lo
        echo "192.0.2.4 server.example" >>/etc/hosts
        cp -r /etc/pki/gmblock /etc/pki/backup
        qemu-nbd --fork --persistent --bind=192.0.2.4 --export-name=disk --format=raw --tls-creds=t \
            --object=tls-creds-x509,id=t,endpoint=server,dir=/etc/pki/gmblock d.img
        # What goes to a host comes from the other one.
        ip route replace table local local 192.0.2.1 dev lo src 192.0.2.2
        ip route replace table local local 192.0.2.2 dev lo src 192.0.2.1""",
    "gmblock-reload.1": """
        serve 'gmblock serve null:1M --listen nbds://127.0.0.1 --tls-certificates /etc/pki/gmblock'""",
    "gmblock-serve.1": "truncate -s 1M golden.img",
    "gmblock-snapshot.1": '''
        mkdir /run/gmblock; gmblock create --size=32M flash:disk
        serve "gmblock serve --listen 'nbd+unix:///?socket=/run/gmblock/gmblock.sock' --export disk=flash:disk"''',
    "gmblock-stats-json.5": "storage; gmblock bench --requests 64 nbd://localhost/",
    "gmblock-stats.1": "storage; gmblock bench --requests 64 nbd://localhost/",
    "gmblock-trace.1": "storage; load",
    "gmblock-upgrade.1": """
        echo 'exports: [{name: "", path: "null:1M"}]' >new.conf
        serve 'gmblock serve null:1M'""",
}

# What is shortened, or has another name here.
SHORTER = (
    ("build/gmblock", "gmblock"),
    ("gmblock bench ", "gmblock bench --requests 64 --warmup 0 "),
    ("gmblock stats --json --watch", "timeout 1 gmblock stats --json --watch || [ $? = 124 ]"),
    ("gmblock upgrade 4711", "gmblock upgrade $(pgrep -n -x gmblock)"),
    *((f"/dev/{name}", f"/srv/{name}") for name in ("sdb", "nvme0n1", "md0")),
)

# What needs more than a shell, and where it is run.
ELSEWHERE = {
    r"gmblock (attach|detach)|mkfs|umount|losetup": "tests/vm/attach.py",
    r"gmblock lease ": "tests/functional/serve-leases.py",
    r"gmblock top": "tests/functional/top-terminal.py",
    r"make (run|test) ": "tests/frontdoor/demo.py",
    r"clan-run ": "tests/sockets/sockets-programs.py",
    r"fi_pingpong": "tests/interop/clan-fi.py",
    r"export |omniNames|LD_PRELOAD": "tests/interop/clan-omniorb.py",
    r"cc first.c": "tests/functional/client-install.py",
    r"pcs ": "tests/functional/fence-agent.py",
}


def examples(text):
    """The blocks and single lines of a section that are a shell's."""
    for line, block in re.findall(
            r"^\.Dl ([^\n]*)|^\.Bd -literal[^\n]*\n(.*?)^\.Ed", text, re.M | re.S):
        block = (line or block).replace("\\e", "\\").replace("\\(dq", '"').replace("\\&", "")
        if re.match(r"[$#] \w|gmblock |clan-run ", block):
            yield block


def shell_commands(block):
    """The commands of a block, each as it stands; "" between groups of them. With prompts, other lines
    are what is printed."""
    lines = block.splitlines()
    prompts = re.match(r"[$#] (?!a )", lines[0])
    while lines:
        text = lines.pop(0)
        if not prompts and re.match(r"\s*(#|$)", text):
            yield ""
        if not re.match(r"[$#] " if prompts else r"\s*[^\s#]", text):
            continue
        text = text[2:] if prompts else text
        while lines and (text.endswith("\\") or subprocess.run(
                ["sh", "-n", "-c", text], capture_output=True, check=False).returncode != 0):
            text += "\n" + lines.pop(0)
        yield text


class Examples(Checks):
    """Pages whose examples are run in order, as root in namespaces."""

    def script(self, name, blocks, elsewhere):
        """What runs the blocks of a page. Adds to elsewhere what it has not."""
        text = MACHINE + BEFORE.get(name, "") + "\n"
        for block in blocks:
            is_first = True
            for command in shell_commands(block):
                is_first = is_first or not command
                found = [pattern for pattern in ELSEWHERE if re.match(pattern, command)]
                elsewhere.update(found)
                for long, short in SHORTER:
                    command = command.replace(long, short)
                if found:
                    continue
                text += f"echo {shlex.quote('$ ' + command)}\n"
                serves = command.startswith("gmblock serve ")
                # Those of one group are there at the same time.
                text += "end_servers\n" if serves and is_first else ""
                is_first = is_first and not serves
                text += f"serve {shlex.quote(command)}\n" if serves and "--run" not in command else \
                    f"{command}\n"
        return text + "end_servers\n"

    def run_script(self, name, script):
        folder = self.path(re.sub(r"\W", "-", name))
        os.mkdir(folder)
        authority = tls_tool.Authority(folder + ".authority", "Example CA")
        tls_tool.both(authority, os.path.join(folder, "pki"))
        done = subprocess.run(
            ["unshare", "-m", "-n", "-p", "-f", "--kill-child", "--mount-proc", "sh", "-e", "-c",
             script], cwd=folder, env=dict(os.environ, GMBLOCK=support.program(), GMBLOCK_PLOT=support.PLOT), text=True,
            capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}")

    def test_all(self):
        if os.geteuid() != 0:
            self.skipTest("only root has a machine of its own")
        for tool in ("jq", "zstd", "qemu-img", "nbdcopy", "certtool", "ip"):
            if shutil.which(tool) is None:
                self.skipTest(f"{tool} is not installed")
        pages = {}
        for page in sorted(os.listdir(PAGES)):
            text = read(os.path.join(PAGES, page))
            for part in re.findall(r"^\.Sh EXAMPLES\n(.*?)(?=^\.Sh |\Z)", text, re.M | re.S):
                pages[page] = list(examples(part))
        text = read(os.path.join(ROOT, "README.md"))
        for title, part in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", text, re.M | re.S):
            pages[f"README.md, {title}"] = re.findall(r"^```\n(.*?)^```", part, re.M | re.S)
        elsewhere = set()
        for name, blocks in pages.items():
            script = self.script(name, blocks, elsewhere)
            if "$ " in script[len(MACHINE):]:
                with self.subTest(name):
                    self.run_script(name, script)
        self.assertLessEqual(set(BEFORE), set(pages))
        self.assertEqual(elsewhere, set(ELSEWHERE))
        for path in ELSEWHERE.values():
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)


class Options(Checks):
    """All examples: their options exist."""

    def test_readme(self):
        blocks = re.findall(r"^```\n(.*?)^```", read(os.path.join(ROOT, "README.md")), re.M | re.S)
        self.check_options("\n".join(blocks), 12)

    def test_manual_pages(self):
        for page in sorted(os.listdir(PAGES)):
            with self.subTest(page):
                text = read(os.path.join(PAGES, page))
                lines = re.findall(r"^\.Dl (.*)", text, re.M)
                self.check_options("\n".join([*lines, *(block for _, block in literal(text))]), 0)

    def test_help(self):
        names = re.findall(r"^\.It Cm (\w+)$", read(os.path.join(PAGES, "gmblock.1")), re.M)
        self.assertIn("serve", names)
        for name in names:
            with self.subTest(name):
                text = subprocess.run([support.program(), name, "--help"], capture_output=True,
                                      text=True, check=True).stdout
                self.check_options(text.partition("\nExamples:\n")[2], 0)


if __name__ == "__main__":
    support.main()
