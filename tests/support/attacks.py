"""Programs that try to get out of a sandbox. Each prints `ESCAPED` and what it got hold of, or nothing.

Every attack is bounded: should a wall be missing, it shows that and harms nothing. Addresses outside this machine are
never sent to: a UDP socket is only connected, which asks the routing table and sends no packet.
"""

from __future__ import annotations

from dataclasses import dataclass

SYSCALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    got = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return got if got >= 0 else -ctypes.get_errno()
def refused(number, *arguments):
    return call(number, *arguments) in (-1, -38)  # EPERM, ENOSYS
"""


FILL = """
import socket, time
held = 0
def fill(sender):
    global held
    sender.setblocking(False)
    try:
        while True: held += sender.send(bytes(1 << 16))
    except BlockingIOError: pass
"""
MAP = """
import ctypes, os, time
map = ctypes.CDLL(None).mmap
map.restype = ctypes.c_void_p
map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
"""


@dataclass(frozen=True)
class Attack:
    """`{...}` in the code stand for what the driver prepared outside: see `attack_driver`."""

    name: str
    code: str
    only_x86_64: bool = False
    memory_mb: int | None = None
    """Its memory limit, for attacks that try to hold more than that. They must end as MLE."""


ATTACKS = (
    Attack(
        "read a world-readable file of the host",
        "try: print('ESCAPED', open({readable!r}).read())\nexcept OSError: pass",
    ),
    Attack(
        "read a file only its owner may read",
        "try: print('ESCAPED', open({private!r}).read())\nexcept OSError: pass",
    ),
    Attack(
        "read the host's accounts",
        "if 'root' in open('/etc/passwd').read(): print('ESCAPED')\n"
        "try: print('ESCAPED', open('/etc/shadow').read())\nexcept OSError: pass",
    ),
    Attack("read the environment", "import os\nif {secret!r} in str(os.environ): print('ESCAPED')"),
    Attack(
        "read the environment of other processes",
        "import glob\n"
        "for path in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline'):\n"
        "    try: data = open(path, 'rb').read()\n"
        "    except OSError: continue\n"
        "    if {secret!r}.encode() in data: print('ESCAPED', path)",
    ),
    Attack(
        "find the secret in memory",
        "for line in open('/proc/self/maps'):\n"
        "    fields = line.split()\n"
        "    if 'r' not in fields[1] or len(fields) > 5 and fields[5].startswith('[v'): continue\n"
        "    low, high = (int(x, 16) for x in fields[0].split('-'))\n"
        "    with open('/proc/self/mem', 'rb') as memory:\n"
        "        memory.seek(low)\n"
        "        try: data = memory.read(high - low)\n"
        "        except OSError: continue\n"
        "    if {first_half!r}.encode() + {second_half!r}.encode() in data: print('ESCAPED', line)",
    ),
    Attack(
        "see processes of the host",
        "import os\n"
        "pids = [int(name) for name in os.listdir('/proc') if name.isdigit()]\n"
        "if len(pids) > 2 or {host_pid} in pids and {host_pid} > 5: print('ESCAPED', pids)",
    ),
    Attack(
        "kill a process of the host",
        "import os\n"
        "for pid in ({host_pid}, 1):\n"
        "    try: os.kill(pid, 9)\n"
        "    except OSError: continue\n"
        "    if pid != 1: print('ESCAPED killed', pid)",
    ),
    Attack(
        "trace a process",
        SYSCALL + "import os\npid = os.fork()\n"
        "if pid == 0:\n    import time; time.sleep(1); os._exit(0)\n"
        "if not refused(101, 16, pid, 0, 0): print('ESCAPED ptrace')\n"
        "if not refused(310, pid, 0, 0, 0, 0, 0): print('ESCAPED process_vm_readv')\n"
        "if not refused(438, pid, 0, 0): print('ESCAPED pidfd_getfd')\nos.kill(pid, 9)",
        only_x86_64=True,
    ),
    Attack(
        "write outside",
        "import os\n"
        "for folder in ('/', '/usr', '/usr/local', '/etc', '/root', '/.coa', '/dev', '/proc', '/cell', {folder!r}):\n"
        "    try:\n"
        "        open(folder + '/coa-attack', 'w').write('x'); print('ESCAPED', folder)\n"
        "    except OSError: pass\n"
        "import sys, json\n"
        "for path in (sys.executable, json.__file__, '/etc/passwd'):\n"
        "    try: open(path, 'ab').write(b'x'); print('ESCAPED', path)\n"
        "    except OSError: pass",
    ),
    Attack(
        "connect to a server on the host's loopback",
        "import socket\n"
        "try: socket.create_connection(('127.0.0.1', {port}), 2); print('ESCAPED')\nexcept OSError: pass",
    ),
    Attack(
        "find a way outside",
        "import socket\n"
        "try:\n"
        "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    s.connect(('192.0.2.1', 9)); print('ESCAPED', s.getsockname())\nexcept OSError: pass\n"
        "for family in (socket.AF_INET6, socket.AF_PACKET, socket.AF_NETLINK, 40):\n"
        "    try: socket.socket(family, socket.SOCK_DGRAM); print('ESCAPED family', family)\n"
        "    except OSError: pass",
    ),
    Attack(
        "connect to an abstract socket of the host",
        "import socket\n"
        "try:\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect('\\0' + {abstract!r}); print('ESCAPED')\n"
        "except OSError: pass",
    ),
    Attack(
        "connect to a socket file of the host",
        "import socket\n"
        "try:\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect({socket_file!r}); print('ESCAPED')\n"
        "except OSError: pass",
    ),
    Attack(
        "fork without end",
        "import os, time\n"
        "born = 0\n"
        "for _ in range(300):\n"
        "    try: pid = os.fork()\n"
        "    except OSError: break\n"
        "    if pid == 0:\n        time.sleep(5); os._exit(0)\n"
        "    born += 1\n"
        "if born > 70: print('ESCAPED', born)",
    ),
    Attack(
        "start threads without end",
        "import threading, time\n"
        "born = 0\n"
        "for _ in range(300):\n"
        "    try: threading.Thread(target=time.sleep, args=(2,), daemon=True).start()\n"
        "    except RuntimeError: break\n"
        "    born += 1\n"
        "if born > 70: print('ESCAPED', born)",
    ),
    Attack(
        "take 6 GB in one process",
        "kept = []\n"
        "try:\n"
        "    for _ in range(60): kept.append(bytearray(100 << 20))\n"
        "except MemoryError: pass\n"
        "if len(kept) > 12: print('ESCAPED', len(kept) * 100, 'MB')",
    ),
    Attack(
        "take 3.6 GB in twelve processes",
        "import os, time\n"
        "children = []\n"
        "for _ in range(12):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        kept = bytearray(os.urandom(1 << 20) * 300); time.sleep(3); os._exit(0)\n"
        "    children.append(pid)\n"
        "codes = [os.waitpid(pid, 0)[1] for pid in children]\n"
        "if not any(codes): print('ESCAPED')",
    ),
    Attack(
        "take memory after the first thread has ended",
        "import ctypes, os, threading, time\n"
        "reader, writer = os.pipe()\n"
        "def hold():\n"
        "    time.sleep(0.1)\n"
        "    kept = bytearray(os.urandom(1 << 20) * 40); os.write(writer, b'.'); time.sleep(5); os._exit(0)\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        threading.Thread(target=hold).start()\n"
        "        ctypes.CDLL(None).syscall(60, 0)\n"
        "for _ in range(4): os.read(reader, 1)\n"
        "time.sleep(2); print('ESCAPED 160 MB')",
        only_x86_64=True,
        memory_mb=64,
    ),
    Attack(
        "take memory in a child of the process that watches",
        SYSCALL + "import os, time\n"
        "reader, writer = os.pipe()\n"
        "for _ in range(4):\n"
        "    child = call(56, 0x8000 | 17, 0, 0, 0, 0)  # CLONE_PARENT\n"
        "    if child < 0: raise MemoryError('refused')\n"
        "    if child == 0:\n"
        "        kept = bytearray(os.urandom(1 << 20) * 40); os.write(writer, b'.'); time.sleep(5); os._exit(0)\n"
        "for _ in range(4): os.read(reader, 1)\n"
        "time.sleep(2); print('ESCAPED 160 MB')",
        only_x86_64=True,
        memory_mb=64,
    ),
    Attack(
        "hold data in sockets",
        FILL + "kept = [socket.socketpair() for _ in range(100)]\n"
        "for sender, _ in kept:\n"
        "    try: sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)\n"
        "    except OSError: pass\n"
        "    fill(sender)\n"
        "    if held > 160 << 20: break\n"
        "time.sleep(2); print('ESCAPED', held)",
        memory_mb=24,
    ),
    Attack(
        "hold data in connections that nobody accepts",
        FILL + "server = socket.socket(socket.AF_UNIX); server.bind('/tmp/server'); server.listen(4096)\n"
        "for _ in range(400):\n"
        "    with socket.socket(socket.AF_UNIX) as sender: sender.connect('/tmp/server'); fill(sender)\n"
        "time.sleep(2); print('ESCAPED', held)",
        memory_mb=64,
    ),
    Attack(
        "hold data in pipes",
        "import fcntl, os, time\n"
        "for _ in range(16):\n"
        "    if os.fork() == 0:\n"
        "        for n in range(90):\n"
        "            if n % 2: reader, writer = os.pipe()\n"
        "            else:\n"
        "                name = '/tmp/%d-%d' % (os.getpid(), n)\n"
        "                os.mkfifo(name); reader = os.open(name, os.O_RDWR); writer = os.open(name, os.O_RDWR)\n"
        "            os.set_blocking(writer, False)\n"
        "            try: fcntl.fcntl(writer, 1031, 1 << 20)  # F_SETPIPE_SZ\n"
        "            except OSError: pass\n"
        "            try:\n"
        "                while True: os.write(writer, bytes(1 << 16))\n"
        "            except BlockingIOError: pass\n"
        "        time.sleep(5); os._exit(0)\n"
        "time.sleep(5); print('ESCAPED')",
        memory_mb=64,
    ),
    Attack(
        "hold memory in page tables",
        MAP + "for n in range(20000):\n"
        "    place = map(0x100000000000 + (n << 30), 4096, 1, 0x22 | 0x100000, -1, 0)\n"
        "    ctypes.c_char.from_address(place).value  # the page is the zero page; its tables are not\n"
        "time.sleep(2); print('ESCAPED', [line for line in open('/proc/self/status') if 'VmPTE' in line])",
        memory_mb=64,
    ),
    Attack(
        "hold memory in mappings",
        MAP + "for n in range(60000): map(0x100000000000 + (n << 13), 4096, 0, 0x22 | 0x100000, -1, 0)\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0: time.sleep(20); os._exit(0)\n"
        "time.sleep(5); print('ESCAPED')",
        memory_mb=32,
    ),
    Attack(
        "hold memory in watches",
        "import os, select, time\n"
        "targets = [os.eventfd(0) for _ in range(100)]\n"
        "for _ in range(100):\n"
        "    queue = select.epoll(); queues = [*globals().get('queues', ()), queue]\n"
        "    for target in targets:\n"
        "        for n in range(40): queue.register(os.dup2(target, 210 + n), 0)\n"
        "time.sleep(5); print('ESCAPED')",
        memory_mb=32,
    ),
    Attack(
        "hold memory in access lists",
        "import os, struct\n"
        "entry = lambda kind, user: struct.pack('<HHI', kind, 7, user)\n"
        "given = struct.pack('<I', 2) + entry(1, -1 & 0xffffffff) + entry(2, os.getuid()) * 8000\n"
        "given += b''.join(entry(kind, -1 & 0xffffffff) for kind in (4, 16, 32))\n"
        "for n in range(10):\n"
        "    open('/tmp/%d' % n, 'w').close()\n"
        "    try: os.setxattr('/tmp/%d' % n, 'system.posix_acl_access', given); print('ESCAPED')\n"
        "    except OSError: pass",
    ),
    Attack(
        "map memory that belongs to no process",
        "import ctypes, mmap, os\n"
        "libc = ctypes.CDLL(None)\n"
        "for name, get in {'memfd': lambda: os.memfd_create('x'), 'shared': lambda: mmap.mmap(-1, 1 << 20),\n"
        "        'zero': lambda: mmap.mmap(os.open('/dev/zero', os.O_RDONLY), 1 << 20, prot=mmap.PROT_READ),\n"
        "        'huge': lambda: mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)}.items():\n"
        "    try: get(); print('ESCAPED', name)\n"
        "    except (OSError, ValueError): pass\n"
        "if libc.shmget(0, 1 << 20, 0o1600) >= 0: print('ESCAPED shmget')",
    ),
    Attack(
        "write to standard input",
        "import os\n"
        "written = 0\n"
        "for opened in (lambda: 0, lambda: os.open('/proc/self/fd/0', os.O_RDWR)):\n"
        "    try: handle = opened(); written += os.pwrite(handle, bytes(1 << 20), 0)\n"
        "    except OSError: pass\n"
        "if written: print('ESCAPED', written)",
    ),
    Attack(
        "take shared memory beyond the disk limit",
        "import os\n"
        "written = 0\n"
        "try:\n"
        "    for n in range(300):\n"
        "        with open('/dev/shm/%d' % n, 'wb') as f: written += f.write(bytes(1 << 20))\n"
        "except OSError: pass\n"
        "if written > 70 << 20: print('ESCAPED', written)",
    ),
    Attack(
        "fill the disk",
        "import os\n"
        "written = 0\n"
        "for folder in ('/work', '/tmp', '/var/tmp'):\n"
        "    try:\n"
        "        for n in range(300):\n"
        "            with open(folder + '/%d' % n, 'wb') as f: written += f.write(bytes(1 << 20))\n"
        "    except OSError: pass\n"
        "if written > 70 << 20: print('ESCAPED', written)",
    ),
    Attack(
        "make files without end",
        "made = 0\n"
        "try:\n"
        "    for n in range(40000): open('/tmp/%d' % n, 'w').close(); made += 1\n"
        "except OSError: pass\n"
        "if made > 17000: print('ESCAPED', made)",
    ),
    Attack(
        "new namespaces and mounts",
        SYSCALL + "for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000):\n"
        "    if not refused(272, flag): print('ESCAPED unshare', hex(flag))\n"
        "if not refused(165, b'none', b'/tmp', b'tmpfs', 0, None): print('ESCAPED mount')\n"
        "if not refused(166, b'/proc', 2): print('ESCAPED umount')\n"
        "if not refused(161, b'/work'): print('ESCAPED chroot')\n"
        "if not refused(155, b'/work', b'/work'): print('ESCAPED pivot_root')\n"
        "for number in (428, 429, 430, 432, 442):\n"
        "    if not refused(number, 0, 0, 0, 0, 0): print('ESCAPED', number)\n"
        "if call(56, 0x10000000 | 17, 0, 0, 0, 0) >= 0: print('ESCAPED clone into a user namespace')\n"
        "if call(435, 0, 0) != -38: print('ESCAPED clone3')",
        only_x86_64=True,
    ),
    Attack(
        "rarely used kernel interfaces",
        SYSCALL
        + "for name, number in dict(io_uring=425, bpf=321, keyctl=250, add_key=248, perf=298, userfaultfd=323,\n"
        "        open_by_handle=304, kexec=246, init_module=175, syslog=103, personality=135, modify_ldt=154,\n"
        "        acct=163, swapon=167, reboot=169, iopl=172, fanotify=300, kcmp=312, memfd_secret=447,\n"
        "        sendfile=40, splice=275, tee=276, vmsplice=278, io_setup=206, seccomp=317, landlock=444).items():\n"
        "    if not refused(number, 0, 0, 0, 0, 0): print('ESCAPED', name)\n"
        "if not refused(157, 22, 2, 0, 0, 0): print('ESCAPED PR_SET_SECCOMP')\n"
        "if not refused(56, 0x10000 | 0x800 | 0x100, 0, 0, 0, 0): print('ESCAPED a thread with its own descriptors')\n"
        "if not refused(0x40000000 + 39): print('ESCAPED x32')",
        only_x86_64=True,
    ),
    Attack(
        "watch what the host does with its files",
        "import ctypes, fcntl, os, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "watch = libc.inotify_init1(0)\n"
        "if watch >= 0: print('ESCAPED inotify', libc.inotify_add_watch(watch, b'/usr/bin', 0xfff))\n"
        "folder, file = os.open('/usr/bin', os.O_RDONLY), os.open(__file__, os.O_RDONLY)\n"
        "for name, handle, argument in (('F_NOTIFY', folder, 1), ('F_SETLEASE', file, 0)):\n"
        "    try: fcntl.fcntl(handle, getattr(fcntl, name), argument); print('ESCAPED', name)\n"
        "    except OSError: pass",
    ),
    Attack(
        "read what the kernel says about the machine",
        "for name in ('cmdline', 'config.gz', 'diskstats', 'kallsyms', 'modules', 'partitions'):\n"
        "    try: data = open('/proc/' + name, 'rb').read(64)\n"
        "    except OSError: continue\n"
        "    if data: print('ESCAPED', name, data)",
    ),
    Attack(
        "32-bit system calls on a 64-bit kernel",
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')  # getpid by the old gate\n"
        "function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
        "got = function()\n"
        "if got != -38: print('ESCAPED', got)  # ENOSYS: there is no such gate",
        only_x86_64=True,
    ),
    Attack(
        "have or regain capabilities",
        "lines = dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines() if l.startswith('Cap'))\n"
        "if any(int(v, 16) for v in lines.values()): print('ESCAPED', lines)\n"
        "import os\n"
        "try: os.setuid(0); print('ESCAPED setuid')\nexcept OSError: pass\n"
        "import glob, subprocess\n"
        "for program in ('/usr/bin/su', '/usr/bin/mount', '/usr/bin/passwd', '/usr/bin/sudo'):\n"
        "    if not os.path.exists(program): continue\n"
        "    if not os.statvfs(program).f_flag & os.ST_NOSUID: print('ESCAPED suid mount', program)",
    ),
    Attack(
        "make a set-user-id program or a device",
        "import os, stat\n"
        "for kind in (stat.S_IFCHR, stat.S_IFBLK):\n"
        "    try: os.mknod('/work/device%d' % kind, kind | 0o666, os.makedev(1, 1)); print('ESCAPED mknod')\n"
        "    except OSError: pass\n"
        "if not os.statvfs('/work').f_flag & os.ST_NOSUID: print('ESCAPED suid')",
    ),
    Attack(
        "reach out through links",
        "import os\n"
        "os.symlink({private!r}, '/work/link')\n"
        "try: print('ESCAPED', open('/work/link').read())\nexcept OSError: pass\n"
        "outer = {folder!r}\n"
        "for path in ('/proc/1/root', '/proc/1/cwd', '/proc/self/root/../..' + outer, '/work/../..' + outer):\n"
        "    try: print('ESCAPED', path, os.listdir(path))\n"
        "    except OSError: pass",
    ),
    Attack(
        "use descriptors that were left open",
        "import os\n"
        "for handle in range(3, 256):\n"
        "    try: kind = os.readlink('/proc/self/fd/%d' % handle)\n"
        "    except OSError: continue\n"
        "    if not kind.startswith('/proc/'): print('ESCAPED', handle, kind)",
    ),
    Attack(
        "change what later runs import",
        "import json, sys\n"
        "json.dumps = lambda *a, **k: 'ESCAPED'\n"
        "sys.modules['math'] = json\n"
        "import os\n"
        "open('/work/sitecustomize.py', 'w').write('print(\"ESCAPED\")')\n"
        "open('/tmp/left', 'w').write('ESCAPED')\n"
        "open('/dev/shm/left', 'w').write('ESCAPED')\n"
        "os.environ['LEFT'] = 'ESCAPED'",
    ),
    Attack(
        "find what an earlier run left",
        "import json, os, math, glob\n"
        "print(json.dumps(1))\n"
        "for path in glob.glob('/tmp/*') + glob.glob('/dev/shm/*') + glob.glob('/work/*'):\n"
        "    if path != __file__: print('ESCAPED', path)\n"
        "if 'LEFT' in os.environ: print('ESCAPED environment')\n"
        "if math.sqrt(4) != 2: print('ESCAPED module')",
    ),
    Attack(
        "ignore signals and sleep",
        "import signal, time\n"
        "for n in range(1, 32):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "time.sleep(60); print('ESCAPED')",
    ),
    Attack("spin", "while True: pass"),
    Attack(
        "outlive the run in a daemon",
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(30); print('ESCAPED'); os._exit(0)\n"
        "    os._exit(0)\n"
        "time.sleep(0.1)",
    ),
    Attack(
        "write 200 MB to standard output",
        "import sys\nfor _ in range(200): sys.stdout.write('x' * (1 << 20))\nprint('ESCAPED')",
    ),
    Attack(
        "write 200 MB to standard error",
        "import sys\nfor _ in range(200): sys.stderr.write('x' * (1 << 20))\nprint('ESCAPED')",
    ),
    Attack(
        "hold the pipe in a child",
        "import os, time\nif os.fork() == 0:\n    time.sleep(60); print('ESCAPED')\nprint('parent done')",
    ),
    Attack(
        "stop the process that watches",
        "import os, signal\n"
        "for pid in (1, os.getppid(), -1):\n"
        "    for what in (signal.SIGSTOP, signal.SIGKILL):\n"
        "        try: os.kill(pid, what)\n"
        "        except OSError: pass",
    ),
    Attack(
        "allocate locked memory and huge stacks",
        "import ctypes, threading\n"
        "libc = ctypes.CDLL(None)\n"
        "buffer = ctypes.create_string_buffer(64 << 20)\n"
        "if libc.mlock(buffer, 64 << 20) == 0: print('ESCAPED mlock')",
    ),
)
