"""Which addresses may be fetched: by how they are written, and by where they lead."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from coa.tools.web.guard import AllowList, Refused, check_addresses, check_url, is_public, may_be_opened

NOBODY = AllowList()
INSIDE = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254",
    "168.63.129.16", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:c0a8:101::1", "3fff::1", "fc00::1", "fd00:ec2::254",
    "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
]  # fmt: skip
OUTSIDE = ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001::200e",
           "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"]  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_addresses_inside_are_not_public_however_they_are_wrapped(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", OUTSIDE)
def test_addresses_outside_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/", "http"),
        ("file:///etc/passwd", "http"),
        ("gopher://example.org:80/", "http"),
        ("javascript:alert(1)", "http"),
        ("data:text/html,hello", "http"),
        ("//example.org/", "http"),
        ("http://", "host"),
        ("http://user@example.org/", "user name"),
        ("http://user:secret@example.org/", "user name"),
        ("http://example.org:22/", "port 22"),
        ("http://example.org:8080/", "port 8080"),
        ("http://example.org:99999/", "read"),
        ("http://localhost/", "localhost"),
        ("http://sub.localhost/", "localhost"),
        ("http://LOCALHOST./", "localhost"),
        ("http://metadata.google.internal/computeMetadata/", "metadata"),
        ("http://127.0.0.1/", "public"),
        ("http://[::1]/", "public"),
        ("http://[::ffff:169.254.169.254]/", "public"),
        ("http://[fe80::1%25eth0]/", "public"),
        ("http://127.1/", "unusual"),
        ("http://2130706433/", "unusual"),
        ("http://0x7f000001/", "unusual"),
        ("http://0177.0.0.1/", "unusual"),
        ("http://127.0.0.0x1/", "unusual"),
        ("http://１２７.０.０.１/", "public"),
        ("http://127。0。0。1/", "public"),
        ("http://exa mple.org/", "blanks"),
        ("http://example.org/\r\nHost: inside", "blanks"),
        ("http://example.org/" + "a" * 5000, "longer"),
    ],
)
def test_what_is_wrong_with_an_address_is_told(url: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        check_url(url, NOBODY)


def test_a_good_address_loses_its_fragment_and_nothing_else() -> None:
    assert str(check_url("https://example.org/a%20b?q=1%2B1#part", NOBODY)) == "https://example.org/a%20b?q=1%2B1"
    assert check_url("http://[2606:4700::1111]/", NOBODY).host == "2606:4700::1111"


def test_one_inside_address_among_public_ones_is_enough_to_refuse() -> None:
    public, inside = ip_address("1.1.1.1"), ip_address("10.0.0.1")
    check_addresses("example.org", 80, [public], NOBODY)
    with pytest.raises(Refused, match="does not lead"):
        check_addresses("example.org", 80, [public, inside], NOBODY)


def test_the_allow_list_opens_one_port_of_one_host() -> None:
    allowed = AllowList.parse([" 127.0.0.1:8080 ", "World.test:81", "[::1]:8080", ""])
    assert check_url("http://127.0.0.1:8080/x", allowed).port == 8080
    assert check_url("http://world.test:81/", allowed).host == "world.test"
    assert check_url("http://[::1]:8080/", allowed).host == "::1"
    for other in ("http://127.0.0.1:8081/", "http://127.0.0.1/", "http://127.0.0.2:8080/", "http://localhost:8080/"):
        with pytest.raises(Refused):
            check_url(other, allowed)


def test_the_allow_list_never_opens_metadata() -> None:
    allowed = AllowList.parse(["world.test:80"])
    check_addresses("world.test", 80, [ip_address("127.0.0.1"), ip_address("10.0.0.1"), ip_address("::1")], allowed)
    for address in ("169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "100.100.100.200", "168.63.129.16"):
        assert not may_be_opened(ip_address(address))
        with pytest.raises(Refused):
            check_addresses("world.test", 80, [ip_address(address)], allowed)


@pytest.mark.parametrize("entry", ["localhost", "localhost:x", "http://a:1", "a:1/path", "u@a:1", ":80"])
def test_an_entry_that_is_not_host_and_port_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        AllowList.parse([entry])
