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


@dataclass(frozen=True)
class Attack:
    """`{...}` in the code stand for what the driver prepared outside: see `attack_driver`."""

    name: str
    code: str
    only_x86_64: bool = False


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
        "        acct=163, swapon=167, reboot=169, iopl=172, fanotify=300, kcmp=312, memfd_secret=447).items():\n"
        "    if not refused(number, 0, 0, 0, 0, 0): print('ESCAPED', name)\n"
        "if not refused(0x40000000 + 39): print('ESCAPED x32')",
        only_x86_64=True,
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
        "    if path != '/work/main.py': print('ESCAPED', path)\n"
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
