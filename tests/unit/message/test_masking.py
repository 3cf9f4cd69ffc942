"""What history masks: values under telling keys, tokens known by their form; and what it leaves alone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from jobpool.message.masking import DEEPEST, MASK, TOO_DEEP, Masker

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{'MIIEow-IBAAKC+/=' * 4}\n-----END RSA PRIVATE KEY-----"
TOKENS = (
    *("glpat-ab1cd2ef3gh4ij5kl6mn", "gldt-ab1cd2ef3gh4ij5kl6mn", f"sk-{'aB1' * 16}", f"sk-ant-api03-{'aB1-' * 10}"),
    *(f"sk-proj-{'aB1_' * 10}", f"AIza{'aB1-c' * 7}", "GOCSPX-ab1cd2ef3gh4ij5kl6mn", f"SG.{'aB1' * 7}.{'aB1' * 14}"),
    *(f"npm_{'aB1' * 12}", f"pypi-AgEI{'aB1_' * 12}", f"hf_{'aB' * 17}", f"dop_v1_{'a1' * 32}", f"shpat_{'a1' * 16}"),
    *(f"hvs.{'aB1-' * 8}", f"dckr_pat_{'aB1-' * 7}", f"glsa_{'aB1c' * 8}_a1b2c3d4", f"whsec_{'aB1/' * 8}"),
    *(f"dapi{'a1' * 16}", f"PMAK-{'a1' * 12}-{'a1' * 17}", f"ATATT3{'aB1-' * 20}", "ASIAIOSFODNN7EXAMPLE"),
    *("https://hooks.slack.com/services/T0/B0/aB1"[8:], f"AGE-SECRET-KEY-1{'QPZ' * 19}", f"LS0tLS1CRUdJTi{'aB1/' * 8}"),
)
MASKER = Masker(["customer no", "x-signature"])


def test_the_value_under_a_telling_key_is_masked() -> None:
    for key in (
        *("password", "PASSWORD", "dbPassword", "db_password", "Password2", "passwords", "token", "accessToken"),
        *("access-token", "tokens", "HTTPToken", "secret", "client_secret", "Authorization", "proxy-authorization"),
        *("api_key", "apiKey", "APIKey", "api-key", "apikey", "x-api-key", "API KEY", "customerNo", "customer-no"),
        *("X-Signature", "xSignature", "my.secret.value", "passwd", "db_passwd", "Pwd", "passphrase", "Set-Cookie"),
        *("cookies", "private_key", "privateKey", "SSH-PRIVATE-KEY", "AccountKey", "SharedAccessKey", "credentials"),
        *("aws_access_key", "signing_key", "encryptionKey"),
    ):
        assert MASKER.value({"a": [{key: "hunter2"}]}) == {"a": [{key: MASK}]}, key


def test_a_key_that_only_looks_like_one_is_left_alone() -> None:
    for key in (
        *("tokenizer", "secretary", "author", "passwordless", "keyapi", "api", "key", "customer", "signature"),
        *("passwort", "authorize", "", "tokenise", "monkey"),
    ):
        assert MASKER.value({key: "hunter2"}) == {key: "hunter2"}, key


def test_a_key_that_is_too_long_to_be_looked_at_hides_its_value() -> None:
    long = "x-" * 100
    assert MASKER.value({long: "fine", f"{long}password": "hunter2"}) == {long: "fine", f"{long}password": MASK}


def test_whatever_stands_under_a_telling_key_is_masked() -> None:
    for value in (1, 1.5, None, True, ["a"], {"a": "b"}, "", "x" * 1000):
        assert MASKER.value({"token": value}) == {"token": MASK}, value


def test_a_secret_in_a_text_is_masked() -> None:
    for case, text, masked in [
        ("JWT", f"sent {JWT}, done", f"sent {MASK}, done"),
        ("JWT with something before it", f"x{JWT}", f"x{MASK}"),
        ("JWT behind dots", f"..{JWT}", f"..{MASK}"),
        ("JWT without a signature", JWT.rpartition(".")[0] + ".", MASK),
        ("sk_", "key sk_live_4eC39HqLyjWDarjtT1zdp7dc!", f"key {MASK}!"),
        ("pk_", "pk_test_TYooMQauvdEDq54NiTphI7jx", MASK),
        ("AKIA", "id=AKIAIOSFODNN7EXAMPLE", f"id={MASK}"),
        ("GitHub", f"ghp_{'a1' * 18}", MASK),
        ("GitHub, fine-grained", f"github_pat_{'a1' * 20}", MASK),
        ("Slack", "xoxb-123456789012-abcdef", MASK),
        ("Slack app", "xapp-1-A012-345-abc", MASK),
        *((token[:9], f"({token})", f"({MASK})") for token in TOKENS),
        ("behind an escape", r"key:\nglpat-ab1cd2ef3gh4ij5kl6mn\n", rf"key:\n{MASK}\n"),
        ("PEM", f"a\n{PEM}\nb", f"a\n{MASK}\nb"),
        ("PEM, assigned", f"private_key={PEM}", f"private_key={MASK}"),
        ("PEM that was cut", f"{PEM[:60]}, cut", MASK),
        ("PEM within a repr", repr({"a": PEM}), f"{{'a': '{MASK}'}}"),
        ("PGP", PEM.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"), MASK),
        ("other words for it", "passwd=hunter2 Pwd=hunter2;x", f"passwd={MASK} Pwd={MASK};x"),
        ("cookies, to the end of the line", "Set-Cookie: a=1; b=2\nHost: h", f"Set-Cookie: {MASK}\nHost: h"),
        ("Azure", "sb://h/;SharedAccessKey=hunter2=;x=1", f"sb://h/;SharedAccessKey={MASK};x=1"),
        ("Bearer", "Bearer abc.def-123", f"Bearer {MASK}"),
        ("bearer and a tab", "bearer\tabc.def-123", f"bearer {MASK}"),
        ("header", "Authorization: Basic dXNlcjpwYXNz", f"Authorization: {MASK}"),
        ("to its end", "authorization: Digest u='x', r='y'\nHost: h", f"authorization: {MASK}\nHost: h"),
        ("assignment", "password=hunter2, user=me", f"password={MASK}, user=me"),
        ("more words behind", "SECRET_KEY = 'hunter2' x", f"SECRET_KEY = {MASK} x"),
        ("a place behind", "DB_PASSWORD_PROD=hunter2", f"DB_PASSWORD_PROD={MASK}"),
        ("a number behind", "password2: hunter2, api-keys-3=x", f"password2: {MASK}, api-keys-3={MASK}"),
        ("humps", "tokenValue=hunter2; apiKeyProd => 'a b'", f"tokenValue={MASK}; apiKeyProd => {MASK}"),
        ("dots", "app.secret.key=hunter2", f"app.secret.key={MASK}"),
        ("a repr of settings", "{'SECRET_KEY': 'hunter2'}", f"{{'SECRET_KEY': {MASK}}}"),
        ("humps in quotes", "{'passwordProd': 'hunter2'}", f"{{'passwordProd': {MASK}}}"),
        ("a cookie's name", "COOKIE_VALUE=hunter2; x=1", f"COOKIE_VALUE={MASK}; x=1"),
        ("an option with a sign", "x --db-password-prod=hunter2", f"x --db-password-prod={MASK}"),
        ("two words", "api key: 123", f"api key: {MASK}"),
        ("in quotes", "connect(password='a, b', port=1)", f"connect(password={MASK}, port=1)"),
        ("a dict's repr", "{'token': b'abc', 'x': 1}", f"{{'token': {MASK}, 'x': 1}}"),
        ("JSON that was cut", 'cut {"secret": "a\\"b", "y"', f'cut {{"secret": {MASK}'),
        ("a structure", 'token={"a": "b", "c": "d"}', f"token={MASK}"),
        ("URL", "redis://me:hunter2@host/0", f"redis://me:{MASK}@host/0"),
        ("URL without a user", "redis://:hunter2@host/0", f"redis://:{MASK}@host/0"),
        ("option", "mysql --password hunter2 -x", f"mysql --password {MASK} -x"),
        ("option and quotes", "x -v --api-key 'a b' c", f"x -v --api-key {MASK} c"),
        ("option behind an option", "x --deep --db-password hunter2", f"x --deep --db-password {MASK}"),
        ("arguments as JSON", '["x", "--token", "hunter2"]', f'["x", "--token", "{MASK}"]'),
        ("a quoted line", "'mysql --password hunter2'", f"'mysql --password {MASK}'"),
        ("JSON", '{"a": {"password": {"b": 1}}}', f'{{"a": {{"password": "{MASK}"}}}}'),
        ("a key that comes twice", '{"password":"hunter2","password":"***"}', f'{{"password": "{MASK}"}}'),
    ]:
        assert MASKER.text(text) == masked, case


def test_what_only_looks_like_a_secret_is_left_alone() -> None:
    for case, text in [
        ("no JWT", "eyJ.x.y and eyJhbGci"),
        ("dots", "version 1.2.3.4 of module.class.method.with.a.long.name"),
        ("sk_ within a word", "desk_organisation_name"),
        ("short sk_", "sk_short"),
        ("a primary key", "pk_customer_id"),
        ("short AKIA", "AKIA123"),
        ("short GitHub and Slack", "ghp_short xoxb-1"),
        ("a bearer", "the bearer of news"),
        ("a token that is not an assignment", "invalid token"),
        ("another word", "tokenizer=fast"),
        ("another word with more behind", "TOKENIZER_KIND=fast secretary_name: me"),
        ("an error's name", "app.tokens.TokenExpired: it ended\nInvalidTokenError: not signed"),
        ("no password in a URL", "https://host/path:8080@x"),
        ("an option without a value", "a --token --verbose b"),
        ("another option", "x --tokenizer fast --user me"),
        ("no option", "no-password needed"),
        ("sk- within a word", "task-management-2024-and-more-of-it"),
        ("sk- without a digit", "sk-learn-contrib-is-a-longer-name"),
        ("gl", "glpat-short global-configuration-and-more-of-it"),
        ("a certificate", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"),
        ("a public key", "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----"),
        ("nothing", ""),
    ]:
        assert MASKER.text(text) == text, case


def test_what_is_nested_too_deep_is_marked_and_not_shown() -> None:
    value: Any = "hunter2"
    for _ in range(DEEPEST + 1):
        value = {"a": value}
    masked = json.dumps(MASKER.value(value))
    assert "hunter2" not in masked
    assert TOO_DEEP in masked


def test_what_is_at_the_deepest_place_is_still_shown() -> None:
    value: Any = "fine"
    for _ in range(DEEPEST):
        value = [value]
    assert MASKER.value(value) == value


def test_the_value_of_a_secret_option_is_masked_among_arguments() -> None:
    words = ["mysql", "-v", "--password", "hunter2", "--token", "--user", "me", "--secret", "-x"]
    masked = ["mysql", "-v", "--password", MASK, "--token", "--user", "me", "--secret", MASK]
    assert MASKER.value(words) == masked
    assert MASKER.value(["--token", {"a": 1}, None]) == ["--token", {"a": 1}, None]


def test_masking_changes_nothing_in_the_value_itself() -> None:
    value = {"password": "hunter2", "list": ["Bearer abcdef"]}
    before = json.dumps(value)
    MASKER.value(value)
    assert json.dumps(value) == before


def test_objects_of_other_kinds_are_shown_as_masked_text() -> None:
    assert MASKER.value({"url": type("Url", (), {"__str__": lambda _: "http://me:pw@h"})()}) == {
        "url": f"http://me:{MASK}@h"
    }


# --- whatever the nesting ---------------------------------------------------------------------------------------------

SECRET = "V9xQ7hunterZ2kL"
PLACES = st.sampled_from(
    [
        *("password", "apiKey", "Access-Token", "authorization", "clientSecret"),
        *("list", "dict", "text", "json text", "token", "python"),
    ]
)


def planted(path: list[str]) -> Any:
    """A value with the secret in it, wrapped as the path says, from the inside out."""
    value: Any = {"password": SECRET}
    for place in path:
        match place:
            case "list":
                value = ["a", value, 1]
            case "dict":
                value = {"a": 1, "b": value}
            case "text":
                value = f"before {value} behind"
            case "json text":
                value = json.dumps(value)
            case "token":
                value = [value, f"Bearer {SECRET}"]
            case "python":
                value = [value, f"connect(token={SECRET!r}, timeout=3)"]
            case key:
                value = {key: value}
    return value


@given(st.lists(PLACES, max_size=14))
@settings(max_examples=examples(300))
def test_no_planted_secret_survives_in_any_nesting(path: list[str]) -> None:
    value = planted(path)
    assert SECRET not in json.dumps(MASKER.value(value))
    assert SECRET not in MASKER.text(json.dumps(value))


@given(
    st.text(max_size=40),
    st.sampled_from([JWT, "sk_live_4eC39HqLyjWDarjtT1zdp7dc", "AKIAIOSFODNN7EXAMPLE", f"ghp_{'a1' * 18}"]),
    st.sampled_from(["", " ", ", ", "\n", "("]),
    st.text(max_size=40),
)
def test_a_token_is_found_behind_any_text(before: str, token: str, between: str, behind: str) -> None:
    if not between:
        before += " "
    assert token not in MASKER.text(f"{before}{between}{token}{behind}")


# --- hostile texts ----------------------------------------------------------------------------------------------------

SIZE = 1 << 20
HOSTILE = (
    *("eyJ", "eyJaaaaaaaa.", "eyJaaaaaaaa.a ", "sk_", "bearer ", "password=", 'password="', 'password=\\"'),
    *("token     ", "://a:", "[", '"', "\\", " ", "AKIA", "-----BEGIN PRIVATE KEY-----"),
    *("-----BEGIN PRIVATE KEY----- -----END-", "sk-", "glpat-", "SG.", "cookie:", "a", "xoxb-", "authorization:"),
    *(
        "token_",
        "tokenA",
        "token.",
        "TOKENa",
        "secret-0",
        "token_ =",
        "api_",
        "-",
        "--a",
        "--a ",
        "--a b ",
        "--password ",
        " -a [",
        ' -a "',
    ),
)


def seconds_for(text: str) -> float:
    begun = time.thread_time()
    MASKER.text(text)
    return time.thread_time() - begun


@pytest.mark.xdist_group("timing")
@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_with_the_size_and_not_with_its_square(piece: str) -> None:
    """Sixteen times the text: a square would take 256 times as long. The small one has its overhead against us."""
    small = min(seconds_for(piece * (SIZE // 16 // len(piece))) for _ in range(3))
    assert seconds_for(piece * (SIZE // len(piece))) < 64 * max(small, 0.001)


def test_a_key_of_a_mebibyte_is_no_trouble() -> None:
    key = "aB" * (SIZE // 2)
    assert seconds_for(json.dumps({key: 1})) < 60
