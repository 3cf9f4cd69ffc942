"""Connection strings and URLs of Service Bus, and what is wrong with those that are."""

from __future__ import annotations

import pytest
from support.tables import row

from jobpool.errors import ConfigurationError
from jobpool_backends.servicebus import ServiceBusBackend
from jobpool_backends.servicebus.address import Address, read_address

STRING = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=jobs;SharedAccessKey=aGlkZGVu="
EMULATOR = STRING.replace("shop.servicebus.windows.net/", "127.0.0.1:5672") + ";UseDevelopmentEmulator=true"


def address(url: str, **options: object) -> Address:
    return read_address(url, options)


def test_a_connection_string() -> None:
    found = address(STRING)
    assert (found.host, found.only, found.emulated) == ("shop.servicebus.windows.net", None, False)
    assert found.connection_string is not None
    assert "SharedAccessKey=aGlkZGVu=" in found.connection_string
    assert (found.timeout, found.lock, found.receivers) == (10.0, 60.0, 1)
    assert "aGlkZGVu" not in repr(found)


@pytest.mark.parametrize("written", [STRING.replace("Endpoint", " endpoint "), STRING.replace(";", " ; ") + ";"])
def test_letters_and_spaces_do_not_matter(written: str) -> None:
    assert address(written) == address(STRING.rstrip("/"))


def test_an_emulator_has_a_port() -> None:
    found = address(EMULATOR)
    assert (found.host, found.emulated) == ("127.0.0.1:5672", True)


def test_an_entity_path_is_kept_apart() -> None:
    found = address(f"{STRING};EntityPath=orders")
    assert found.only == "orders"
    assert found.connection_string == address(STRING).connection_string


def test_a_namespace_without_a_key() -> None:
    for url, host in [
        ("servicebus://shop", "shop.servicebus.windows.net"),
        ("servicebus://shop.servicebus.windows.net/", "shop.servicebus.windows.net"),
        ("ServiceBus://shop.servicebus.chinacloudapi.cn", "shop.servicebus.chinacloudapi.cn"),
    ]:
        found = address(url)
        assert (found.host, found.connection_string) == (host, None), url


def test_options_follow_either_form_and_keywords_win() -> None:
    found = address(f"{STRING}?lock=30&timeout=3", timeout=4, receivers=2)
    assert (found.lock, found.timeout, found.receivers) == (30.0, 4.0, 2)
    assert address("servicebus://shop?lock=5").lock == 5.0


def test_what_is_wrong_is_named_and_no_key_is() -> None:
    for url, text in [
        ("Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=jobs", "lacks SharedAccessKey:"),
        ("Endpoint=sb://shop.servicebus.windows.net/", "lacks SharedAccessKeyName and SharedAccessKey"),
        (STRING.replace("sb://shop", "https://shop"), "no valid Endpoint"),
        (STRING.replace("sb://shop.servicebus.windows.net/", ""), "no valid Endpoint"),
        (STRING + ";aGlkZGVu", "a part that is none of"),
        (STRING + ";Password=aGlkZGVu", "a part that is none of"),
        (STRING + ";SharedAccessKey=aGlkZGVu", "SharedAccessKey twice"),
        (STRING.replace(".net/", ".net:5671"), "names a port"),
        (STRING + "?lock=0", "lock as 5 to 300 seconds, not '0'"),
        (STRING + "?lock=301", "lock as 5 to 300 seconds"),
        (STRING + "?timeout=0", "timeout as more than 0"),
        (STRING + "?timeout=soon", "timeout as more than 0"),
        (STRING + "?receivers=0", "receivers as a whole number from 1 to 32"),
        ("servicebus://jobs:aGlkZGVu@shop", "the name of a namespace and nothing else"),
        ("servicebus://", "the name of a namespace and nothing else"),
        ("servicebus://shop/orders", "the name of a namespace and nothing else"),
    ]:
        with row(url), pytest.raises(ConfigurationError) as caught:
            read_address(url, {})
        assert text in str(caught.value), url
        assert "aGlkZGVu" not in str(caught.value), url


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no option dead_max"):
        ServiceBusBackend.from_url(f"{STRING}?dead_max=5")


def test_to_open_one_connects_to_nothing() -> None:
    backend = ServiceBusBackend.from_url(EMULATOR)
    assert backend.namespace.named_queues() == []
    backend.close()
    backend.close()
