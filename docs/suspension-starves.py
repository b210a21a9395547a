#!/usr/bin/env python3
"""Interrupt suspension starves a queue whose epoll context always has something ready.

    sudo python3 suspension-starves.py [IRQ_SUSPEND_TIMEOUT_MS]

Sends 200 datagrams a second over a veth for 4 s to a program that waits with epoll: with interrupts,
with deferral, with suspension, and each with an always writable pipe in the same epoll context.
Needs Linux 6.13, root, python3 and ip. Its two namespaces are made and removed here.
"""
import array
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time

RECEIVER, SENDER, DEV = 'starves-rx', 'starves-tx', 'v0'
ADDRESS, PORT = '10.77.0.1', 9000
RATE, SECONDS = 200, 4


class Netdev:
    """The generic netlink family netdev: its napi-get and napi-set."""

    GET, SET = 11, 14
    IFINDEX, ID, DEFER_HARD_IRQS, GRO_FLUSH_TIMEOUT, IRQ_SUSPEND_TIMEOUT = 1, 2, 5, 6, 7

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        self.socket.bind((0, 0))
        control, get_family, family_name, family_id = 16, 3, 2, 1
        answer = self.call(control, get_family, {family_name: b'netdev\0'})[0]
        self.family = int.from_bytes(answer[family_id][:2], sys.byteorder)

    def call(self, family, command, attributes, flags=5):
        body = struct.pack('BBH', command, 1, 0)
        for kind, value in attributes.items():
            body += struct.pack('HH', 4 + len(value), kind) + value + bytes(-len(value) % 4)
        self.socket.send(struct.pack('IHHII', 16 + len(body), family, flags, 1, 0) + body)
        answers = []
        while True:
            data = self.socket.recv(1 << 16)
            while data:
                length, kind = struct.unpack_from('IH', data)
                message, data = data[16:length], data[length + 3 & ~3:]
                if kind in (2, 3):  # error or acknowledgement, end of a dump
                    error = -struct.unpack_from('i', message)[0]
                    if error:
                        raise OSError(error, os.strerror(error))
                    return answers
                answer, message = {}, message[4:]
                while message:
                    length, kind = struct.unpack_from('HH', message)
                    answer[kind & 0x3FFF] = message[4:length]
                    message = message[length + 3 & ~3:]
                answers.append(answer)

    def set(self, defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout):
        """Sets every instance of the device; times in nanoseconds."""
        device = {self.IFINDEX: struct.pack('I', socket.if_nametoindex(DEV))}
        for napi in self.call(self.family, self.GET, device, flags=0x305):
            self.call(self.family, self.SET, {
                self.ID: napi[self.ID],
                self.DEFER_HARD_IRQS: struct.pack('I', defer_hard_irqs),
                self.GRO_FLUSH_TIMEOUT: struct.pack('I', gro_flush_timeout),
                self.IRQ_SUSPEND_TIMEOUT: struct.pack('I', irq_suspend_timeout),
            })


def offload(command, value):
    """What `ethtool -K` does."""
    value = array.array('I', [command, value])
    request = struct.pack('16sP', DEV.encode(), value.buffer_info()[0]).ljust(40, b'\0')
    fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, request)  # SIOCETHTOOL


def send():
    offload(0x1F, 0)  # TSO off: a veth's receiver uses NAPI only then
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    start = time.monotonic()
    for number in range(RATE * (SECONDS + 1)):
        time.sleep(max(0, start + number / RATE - time.monotonic()))
        out.sendto(b'x', (ADDRESS, PORT))


def receive(prefer_busy_poll, pipe_too):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((ADDRESS, PORT))
    udp.setblocking(False)
    epoll = select.epoll()
    epoll.register(udp, select.EPOLLIN)
    busy_poll_usecs, busy_poll_budget = 0, 64
    params = struct.pack('IHBB', busy_poll_usecs, busy_poll_budget, prefer_busy_poll, 0)
    fcntl.ioctl(epoll, 0x40088A01, params)  # EPIOCSPARAMS
    pipe = os.pipe()
    epoll.poll(5)  # the first datagram tells the context which NAPI instance to follow
    if pipe_too:
        epoll.register(pipe[1], select.EPOLLOUT)
    waits, received, gap = 0, 0, 0
    last = time.monotonic()
    end = last + SECONDS
    while time.monotonic() < end:
        for fd, _ in epoll.poll(0.1):
            while fd == udp.fileno():
                try:
                    udp.recv(64)
                except BlockingIOError:
                    break
                received += 1
                now = time.monotonic()
                gap, last = max(gap, now - last), now
        waits += 1
    gap = max(gap, time.monotonic() - last)
    print(f'received {received:3}  longest time without one {gap:.3f} s  waits {waits}', flush=True)


def compare(irq_suspend_timeout):
    offload(0x2C, 1)  # GRO on: a veth has NAPI only then
    netdev = Netdev()
    for name, prefer_busy_poll, settings in (
        ('interrupts', 0, (0, 0, 0)),
        ('deferral', 1, (100, 20_000, 0)),
        ('suspension', 1, (100, 20_000, irq_suspend_timeout)),
    ):
        for pipe_too in (False, True):
            netdev.set(*settings)
            sender = subprocess.Popen(inside(SENDER, 'send'))
            print(f'{name:10}', 'and a pipe' if pipe_too else ' ' * 10, end='  ', flush=True)
            receive(prefer_busy_poll, pipe_too)
            sender.wait()


def inside(namespace, *arguments):
    return ['ip', 'netns', 'exec', namespace, sys.executable, __file__, *arguments]


def ip(*words):
    subprocess.run(['ip', *words], check=True)


def main():
    if sys.argv[1:2] == ['send']:
        return send()
    if sys.argv[1:2] == ['compare']:
        return compare(int(sys.argv[2]) * 1_000_000)
    milliseconds = sys.argv[1] if sys.argv[1:] else '20'
    print(f'Linux {os.uname().release}, irq_suspend_timeout {milliseconds} ms', flush=True)
    try:
        ip('netns', 'add', RECEIVER)
        ip('netns', 'add', SENDER)
        ip('link', 'add', DEV, 'netns', RECEIVER, 'type', 'veth', 'peer', DEV, 'netns', SENDER)
        for namespace, address in (RECEIVER, ADDRESS), (SENDER, '10.77.0.2'):
            ip('-n', namespace, 'address', 'add', address + '/24', 'dev', DEV)
            ip('-n', namespace, 'link', 'set', DEV, 'up')
        subprocess.run(inside(RECEIVER, 'compare', milliseconds), check=True)
    finally:
        for namespace in RECEIVER, SENDER:
            subprocess.run(['ip', 'netns', 'delete', namespace], stderr=subprocess.DEVNULL)


main()
