"""The built-in handler `url`: what plain URLs mean, and which addresses are public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from jobpool.handlers.builtin.url.addresses import V4, V6, why_not_public
from jobpool.handlers.builtin.url.request import Refused, parse

TRANSLATED = IPv6Network("64:ff9b::/96")
PLAIN = {
    "http://example.com": ("http", "example.com", 80, "/", "example.com"),
    "HTTPS://Example.COM/A?b=C": ("https", "example.com", 443, "/A?b=C", "example.com"),
    "http://example.com:80/": ("http", "example.com", 80, "/", "example.com"),
    "http://example.com:443/": ("http", "example.com", 443, "/", "example.com:443"),
    "https://example.com?a=1": ("https", "example.com", 443, "/?a=1", "example.com"),
    "https://example.com//x//?": ("https", "example.com", 443, "//x//?", "example.com"),
    "https://example.com/@x:y@z?u=http://127.0.0.1/": (
        *("https", "example.com", 443, "/@x:y@z?u=http://127.0.0.1/", "example.com"),
    ),
    "http://a-b_c.xn--p1ai:8080/%7Eu/[1]": ("http", "a-b_c.xn--p1ai", 8080, "/%7Eu/[1]", "a-b_c.xn--p1ai:8080"),
    "http://1.1.1.1.nip.test/": ("http", "1.1.1.1.nip.test", 80, "/", "1.1.1.1.nip.test"),
    "http://3com/": ("http", "3com", 80, "/", "3com"),
    "http://8.8.8.8/": ("http", "8.8.8.8", 80, "/", "8.8.8.8"),
    "http://[2606:4700::1111]:81/x": ("http", "2606:4700::1111", 81, "/x", "[2606:4700::1111]:81"),
    "http://[2606:4700:0:0:0:0:0:1111]": ("http", "2606:4700::1111", 80, "/", "[2606:4700::1111]"),
}
PUBLIC = (
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255"),
    *("128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255"),
    *("192.169.0.0", "192.0.1.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.15"),
    *("2606:4700::1111", "2001:4860:4860::8888", "2001:200::1", "3fff:1000::1", "::ffff:8.8.8.8", "64:ff9b::808:808"),
)


def test_a_plain_url() -> None:
    for url, parts in PLAIN.items():
        target = parse(url)
        assert (target.scheme, target.host, target.port, target.path, target.authority) == parts, url


@given(st.text(alphabet="htps:/.@#?%\\[]0x127a-_ \t\né", max_size=40))
def test_whatever_is_read_as_a_url_is_one_host_and_one_path(text: str) -> None:
    try:
        target = parse(f"http://{text}")
    except Refused:
        return
    assert not set(target.host) & set("/@#?%\\[] \t\n")
    assert target.path.startswith("/")
    assert text.lower().lstrip("[").startswith(target.host) or target.address is not None


def test_a_public_address() -> None:
    for text in PUBLIC:
        assert why_not_public(ip_address(text)) == "", text


def test_the_first_and_the_last_address_of_a_special_network_are_not_public() -> None:
    for block in map(ip_network, [*V4, *V6]):
        assert why_not_public(block[0]), block
        assert why_not_public(block[-1]), block


@given(st.integers(0, 2**32 - 1).map(IPv4Address) | st.integers(0x20 << 120, (0x40 << 120) - 1).map(IPv6Address))
def test_nothing_is_public_that_python_calls_special(address: IPv4Address | IPv6Address) -> None:
    if why_not_public(address) == "" and not (isinstance(address, IPv6Address) and address in TRANSLATED):
        assert address.is_global
        assert not any((address.is_multicast, address.is_reserved, address.is_unspecified, address.is_link_local))


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_an_address_in_an_address_is_judged_as_itself_and_a_tunnel_never_passes(address: IPv4Address) -> None:
    why = why_not_public(address)

    assert why_not_public(IPv6Address(f"::ffff:{address}")) == why
    assert why_not_public(IPv6Address(f"64:ff9b::{address}")) == why
    assert why_not_public(IPv6Address(0x2002 << 112 | int(address) << 80))
    assert why_not_public(IPv6Address(0x20010000 << 96 | int(address) ^ 0xFFFFFFFF))
    assert why_not_public(IPv6Address(0x2606470000000000 << 64 | 0x00005EFE << 32 | int(address)))
    assert why_not_public(IPv6Address(0x2606470000000000 << 64 | 0x02005EFE << 32 | int(address)))
    assert why_not_public(IPv6Address(int(address)))
