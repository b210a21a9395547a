"""Prints the kernel's state of devices as JSON, from netlink, sysfs and procfs, without any code of napkin.

reader.py DEV...    the settings of each device, by NAPI id if the kernel has them
reader.py --epoll PID FD    the busy poll parameters of an epoll instance: usecs, budget, prefer
"""
import fcntl, glob, json, os, re, socket, struct, sys

GENERIC, DUMP, REQUEST = 16, 0x300, 1


def attributes(data):
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("HH", data, at)
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += (length + 3) & ~3


def number(data):
    return int.from_bytes(data, "little")


class Family:
    """A generic netlink family; `id` is None if the kernel lacks it."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, GENERIC)
        self.socket.bind((0, 0))
        self.id = 16
        said = self.ask(3, {2: name.encode() + b"\0"}, 0)
        self.id = number(dict(attributes(said[0]))[1]) if said else None

    def ask(self, command, given, flags=DUMP):
        body = struct.pack("BBH", command, 1, 0)
        for kind, value in given.items():
            pad = b"\0" * (-len(value) % 4)
            body += struct.pack("HH", 4 + len(value), kind) + value + pad
        head = struct.pack("IHHII", 16 + len(body), self.id, REQUEST | flags, 1, 0)
        self.socket.send(head + body)
        answers = []
        while True:
            data, at = self.socket.recv(1 << 20), 0
            while at < len(data):
                length, kind = struct.unpack_from("IH", data, at)
                if kind == 2 and number(data[at + 16 : at + 20]) or kind == 3:
                    return answers
                if kind > 3:
                    answers.append(data[at + 20 : at + length])
                at += (length + 3) & ~3
            if not flags:
                return answers


def text(path):
    try:
        return open(path).read().strip()
    except OSError:
        return None


def thread(pid):
    fields = (text(f"/proc/{pid}/stat") or "").rsplit(")", 1)[-1].split()
    allowed = re.search(r"Cpus_allowed_list:\s*(\S+)", text(f"/proc/{pid}/status") or "")
    return {"policy": fields[38], "rt": fields[37], "cpus": allowed[1]} if fields and allowed else None


def threads(dev):
    """The threads of its instances, also unused ones, by the number in the kernel's name for them."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/comm"):
        # comm has 15 characters at most.
        match = re.fullmatch(rf"napi/{dev}-(\d*)", text(path) or "")
        if match:
            found[match[1]] = thread(path.split("/")[2])
    return found


def interrupts(dev):
    """The affinity of a device's own interrupts, by their names in /proc/interrupts."""
    at = os.path.realpath(f"/sys/class/net/{dev}/device")
    own = set(os.listdir(at + "/msi_irqs")) if os.path.isdir(at + "/msi_irqs") else set()
    own |= set(os.listdir(at + "/../msi_irqs")) if os.path.isdir(at + "/../msi_irqs") else set()
    found = {}
    for line in open("/proc/interrupts"):
        irq, _, rest = line.partition(":")
        if irq.strip() in own:
            found[rest.split()[-1]] = text(f"/proc/irq/{irq.strip()}/smp_affinity_list")
    return found


def device(dev, netdev):
    index = socket.if_nametoindex(dev)
    said = {
        name: text(f"/sys/class/net/{dev}/{name}")
        for name in ("threaded", "napi_defer_hard_irqs", "gro_flush_timeout")
    }
    said["threads"], said["interrupts"] = threads(dev), interrupts(dev)
    if netdev.id is None:
        return said
    polled = {}
    for answer in netdev.ask(10, {2: struct.pack("I", index)}):
        queue = {kind: number(value) for kind, value in attributes(answer)}
        name = ("tx" if queue.get(3) else "rx") + str(queue.get(1, 0))
        polled.setdefault(queue.get(4), []).append(name)
    names = {5: "defer", 6: "gro", 7: "suspend", 8: "threaded"}
    napis = {}
    for answer in netdev.ask(11, {1: struct.pack("I", index)}):
        napi = {kind: number(value) for kind, value in attributes(answer)}
        napis[napi[2]] = {names[kind]: value for kind, value in napi.items() if kind in names}
        napis[napi[2]]["polls"] = sorted(polled.get(napi[2], []))
    said["napis"] = napis
    return said


def epoll(pid, fd):
    process = os.pidfd_open(int(pid))
    # pidfd_getfd
    import ctypes
    own = ctypes.CDLL(None, use_errno=True).syscall(438, process, int(fd), 0)
    return struct.unpack("IHBB", fcntl.ioctl(own, 0x80088A02, bytes(8)))[:3]


if sys.argv[1] == "--epoll":
    print(json.dumps(epoll(*sys.argv[2:])))
else:
    netdev = Family("netdev")
    print(json.dumps({dev: device(dev, netdev) for dev in sys.argv[1:]}, sort_keys=True))
