"""Start-up and authentication messages: each whole, cut short, and with bytes behind it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.wire import authentication, startup
from proxy.wire.frontend import MalformedMessage
from proxy.wire.startup import (
    V3_0,
    V3_2,
    CancelRequest,
    GSSENCRequest,
    NotPostgresError,
    ProtocolVersion,
    SSLRequest,
    StartupError,
    StartupPacket,
)


def packet(*strings: str, version: int = 196608, end: bytes = b"\0") -> bytes:
    """A startup packet's body."""
    return struct.pack("!I", version) + b"".join(s.encode() + b"\0" for s in strings) + end


def test_a_startup_packet() -> None:
    read = startup.decode(packet("user", "bot", "database", "shop", "application_name", ""))
    assert read == StartupPacket(V3_0, {"user": "bot", "database": "shop", "application_name": ""})
    assert isinstance(read, StartupPacket)
    assert (read.version, read.needs_negotiation) == (V3_0, False)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (struct.pack("!I", 80877103), SSLRequest()),
        (struct.pack("!I", 80877104), GSSENCRequest()),
        (struct.pack("!II", 80877102, 7) + b"1234", CancelRequest(7, b"1234")),
        (struct.pack("!II", 80877102, 7) + b"k" * 256, CancelRequest(7, b"k" * 256)),
        (packet(), StartupPacket(V3_0, {})),
    ],
)
def test_requests(body: bytes, expected: object) -> None:
    assert startup.decode(body) == expected


@pytest.mark.parametrize(
    ("requested", "spoken", "negotiates"),
    [((3, 0), (3, 0), False), ((3, 1), (3, 1), False), ((3, 2), (3, 2), False), ((3, 9999), (3, 2), True)],
)
def test_versions(requested: tuple[int, int], spoken: tuple[int, int], negotiates: bool) -> None:
    read = startup.decode(packet("user", "bot", version=requested[0] << 16 | requested[1]))
    assert isinstance(read, StartupPacket)
    assert (read.version, read.needs_negotiation) == (spoken, negotiates)


def test_unknown_protocol_options_are_set_apart() -> None:
    read = startup.decode(packet("user", "bot", "_pq_.test_protocol_negotiation", "1"))
    assert isinstance(read, StartupPacket)
    assert read.unsupported == ("_pq_.test_protocol_negotiation",)
    assert read.needs_negotiation
    assert dict(read.parameters) == {"user": "bot"}


@pytest.mark.parametrize(
    ("body", "sqlstate", "why"),
    [
        (packet("user", "bot", version=2 << 16), "0A000", "unsupported frontend protocol 2.0"),
        (packet("user", "bot", version=4 << 16), "0A000", "unsupported frontend protocol 4.0"),
        (packet("user", "bot", end=b""), "08P01", "terminator"),
        (packet("user", "bot", end=b"\0\0"), "08P01", "terminator"),
        (packet("user", "bot", end=b"\0x"), "08P01", "terminator"),
        (packet("user", end=b"\0"), "08P01", "terminator"),
        (packet("user", "", "", "x"), "08P01", "terminator"),
        (struct.pack("!I", 196608), "08P01", "terminator"),
        (packet("user", "bot", "user", "root"), "08P01", '"user" is given twice'),
        (packet("user", "bot", "DateStyle", "ISO", "datestyle", "German"), "08P01", "given twice"),
        (packet("user", "bot", "_pq_.a", "1", "_pq_.a", "2"), "08P01", "given twice"),
        (packet("user", "bot")[:-2] + b"\xff\0\0", "22021", "UTF-8"),
        (struct.pack("!II", 80877103, 0), "08P01", "encryption request"),
        (struct.pack("!I", 80877104) + b"\0", "08P01", "encryption request"),
        (struct.pack("!I", 80877102), "08P01", "cancel"),
        (struct.pack("!II", 80877102, 7), "08P01", "cancel"),
        (struct.pack("!II", 80877102, 7) + b"k" * 257, "08P01", "cancel"),
    ],
)
def test_what_does_not_decode_exactly_is_refused(body: bytes, sqlstate: str, why: str) -> None:
    with pytest.raises(StartupError, match=why) as caught:
        startup.decode(body)
    assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    ("prefix", "length"), [(struct.pack("!I", 8), 4), (struct.pack("!I", 10_004), 10_000)]
)
def test_lengths(prefix: bytes, length: int) -> None:
    assert startup.body_length(prefix) == length


@pytest.mark.parametrize(
    "prefix",
    [struct.pack("!I", n) for n in (0, 3, 4, 7, 10_005, 2**31, 2**32 - 1)] + [b"GET ", b"\x16\x03\x01\x02"],
)
def test_impossible_lengths_are_not_this_protocol(prefix: bytes) -> None:
    with pytest.raises(NotPostgresError):
        startup.body_length(prefix)


@given(st.binary(min_size=4, max_size=200))
@example(b"\x00\x03\x00\x00\x00\x00")
def test_any_body_gives_a_message_or_a_documented_error(body: bytes) -> None:
    try:
        read = startup.decode(body)
    except StartupError:
        return
    if isinstance(read, StartupPacket) and not read.unsupported and read.version == read.requested:
        assert startup.encode_startup(read.parameters, read.version)[4:] == body


NAMES = st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=10
)


@given(st.dictionaries(NAMES.map(str.lower), NAMES, max_size=5))
def test_what_is_encoded_decodes_to_itself(parameters: dict[str, str]) -> None:
    parameters = {k: v for k, v in parameters.items() if not k.startswith("_pq_.") and k == k.lower()}
    encoded = startup.encode_startup(parameters, V3_2)
    assert startup.body_length(encoded[:4]) == len(encoded) - 4
    assert startup.decode(encoded[4:]) == StartupPacket(V3_2, parameters)


def test_a_nul_never_leaves() -> None:
    with pytest.raises(ValueError, match="NUL"):
        startup.encode_startup({"user": "a\0database\0b"})
    with pytest.raises(ValueError, match="NUL"):
        authentication.encode_password("a\0b")


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ("", []),
        ("  ", []),
        ("-c a=b", ["-c", "a=b"]),
        ("\t-c\na=b\r\f\v", ["-c", "a=b"]),
        (r"-c a=x\ y", ["-c", "a=x y"]),
        (r"-c a=x\\y", ["-c", r"a=x\y"]),
        (r"-c a=\-", ["-c", "a=-"]),
        ("-c a=b\\", ["-c", "a=b"]),
        ("\\", [""]),
        ("a\u00a0b", ["a\u00a0b"]),
    ],
)
def test_options_are_cut_as_the_server_cuts_them(options: str, arguments: list[str]) -> None:
    assert startup.split_options(options) == arguments


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("-c geqo=off", [("geqo", "off")]),
        ("-cgeqo=off", [("geqo", "off")]),
        ("--geqo=off", [("geqo", "off")]),
        ("--statement-timeout=0", [("statement_timeout", "0")]),
        ("-c statement-timeout=0", [("statement_timeout", "0")]),
        ("-c a=b=c --d=", [("a", "b=c"), ("d", "")]),
        (r"-c search_path=a,\ b", [("search_path", "a, b")]),
        ("-c -x=1", [("_x", "1")]),
    ],
)
def test_settings_in_options(options: str, settings: list[tuple[str, str]]) -> None:
    assert startup.decode_options(options) == settings


@pytest.mark.parametrize("options", ["-c", "-c geqo", "--geqo", "--=1", "-c =1", "-c ''"])
def test_a_setting_without_name_or_value_is_refused(options: str) -> None:
    with pytest.raises(StartupError, match="requires a value") as caught:
        startup.decode_options(options)
    assert caught.value.sqlstate == "42601"


@pytest.mark.parametrize(
    "options", ["-S 1", "-f n", "-e", "-d5", "--", "-", "geqo=off", "-c a=b x", "''", "\\"]
)
def test_switches_and_strays_are_refused(options: str) -> None:
    with pytest.raises(StartupError, match="invalid argument") as caught:
        startup.decode_options(options)
    assert caught.value.sqlstate == "42601"


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (startup.encode_ssl_request(), b"\0\0\0\x08\x04\xd2\x16\x2f"),
        (startup.encode_cancel(7, b"abcd"), b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x07abcd"),
        (startup.encode_negotiation(V3_2, ["_pq_.a"]), b"v\0\0\0\x13\0\x03\0\x02\0\0\0\x01_pq_.a\0"),
        (startup.encode_parameter_status("a", "b"), b"S\0\0\0\x08a\0b\0"),
        (startup.encode_backend_key(7, b"abcd"), b"K\0\0\0\x0c\0\0\0\x07abcd"),
        (startup.encode_startup({"user": "a"}), b"\0\0\0\x10\0\x03\0\0user\0a\0\0"),
        (authentication.encode_ok(), b"R\0\0\0\x08\0\0\0\0"),
        (authentication.encode_cleartext_wanted(), b"R\0\0\0\x08\0\0\0\x03"),
        (authentication.encode_md5_wanted(b"salt"), b"R\0\0\0\x0c\0\0\0\x05salt"),
        (authentication.encode_sasl_wanted(["SCRAM"]), b"R\0\0\0\x0f\0\0\0\x0aSCRAM\0\0"),
        (authentication.encode_sasl_continue(b"x"), b"R\0\0\0\x09\0\0\0\x0bx"),
        (authentication.encode_sasl_final(b"x"), b"R\0\0\0\x09\0\0\0\x0cx"),
        (authentication.encode_password("pw"), b"p\0\0\0\x07pw\0"),
        (authentication.encode_sasl_initial("S", b"xy"), b"p\0\0\0\x0cS\0\0\0\0\x02xy"),
        (authentication.encode_sasl_response(b"x"), b"p\0\0\0\x05x"),
    ],
)
def test_messages_byte_for_byte(encoded: bytes, expected: bytes) -> None:
    assert encoded == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (struct.pack("!I", 0), authentication.AuthenticationOk()),
        (struct.pack("!I", 3), authentication.CleartextWanted()),
        (struct.pack("!I", 5) + b"salt", authentication.MD5Wanted(b"salt")),
        (struct.pack("!I", 10) + b"A\0B\0\0", authentication.SASLWanted(("A", "B"))),
        (struct.pack("!I", 11) + b"x", authentication.SASLContinue(b"x")),
        (struct.pack("!I", 12), authentication.SASLFinal(b"")),
        (struct.pack("!I", 7), authentication.Unsupported(7)),
    ],
)
def test_authentication_requests(body: bytes, expected: object) -> None:
    assert authentication.decode_authentication(body) == expected


Decoder = Callable[[bytes], object]


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (authentication.decode_authentication, b""),
        (authentication.decode_authentication, b"\0\0\0"),
        (authentication.decode_authentication, struct.pack("!I", 0) + b"x"),
        (authentication.decode_authentication, struct.pack("!I", 3) + b"x"),
        (authentication.decode_authentication, struct.pack("!I", 5) + b"sal"),
        (authentication.decode_authentication, struct.pack("!I", 5) + b"salts"),
        (authentication.decode_authentication, struct.pack("!I", 10)),
        (authentication.decode_authentication, struct.pack("!I", 10) + b"\0"),
        (authentication.decode_authentication, struct.pack("!I", 10) + b"A\0"),
        (authentication.decode_authentication, struct.pack("!I", 10) + b"A\0\0x"),
        (authentication.decode_authentication, struct.pack("!I", 10) + b"A\0\0B\0\0"),
        (authentication.decode_backend_key, b"\0\0\0\x07"),
        (authentication.decode_backend_key, b"\0\0\0\x07" + b"k" * 257),
        (authentication.decode_password, b""),
        (authentication.decode_password, b"pw"),
        (authentication.decode_password, b"p\0w\0"),
        (authentication.decode_password, b"pw\0x"),
        (authentication.decode_password, b"\xff\0"),
        (authentication.decode_sasl_initial, b""),
        (authentication.decode_sasl_initial, b"SCRAM"),
        (authentication.decode_sasl_initial, b"SCRAM\0\0\0\0"),
        (authentication.decode_sasl_initial, b"SCRAM\0\0\0\0\x02x"),
        (authentication.decode_sasl_initial, b"SCRAM\0\0\0\0\x02xyz"),
        (authentication.decode_sasl_initial, b"SCRAM\0\xff\xff\xff\xffx"),
        (authentication.decode_sasl_initial, b"SCRAM\0\xff\xff\xff\xfe"),
    ],
)
def test_authentication_messages_that_are_not_exact(decode: Decoder, body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(body)


def test_an_initial_response_may_be_left_out() -> None:
    assert authentication.decode_sasl_initial(b"SCRAM\0\xff\xff\xff\xff") == ("SCRAM", None)
    assert authentication.decode_sasl_initial(b"SCRAM\0\0\0\0\x00") == ("SCRAM", b"")


@given(st.binary(max_size=60))
@pytest.mark.parametrize(
    "decode",
    [
        authentication.decode_authentication,
        authentication.decode_backend_key,
        authentication.decode_password,
        authentication.decode_sasl_initial,
    ],
)
def test_any_answer_decodes_or_is_malformed(decode: Decoder, body: bytes) -> None:
    try:
        decode(body)
    except MalformedMessage:
        return


def test_versions_are_written_as_people_write_them() -> None:
    assert str(ProtocolVersion(3, 2)) == "3.2"
    assert ProtocolVersion(3, 2).code == 196610
