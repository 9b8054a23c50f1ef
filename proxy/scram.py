"""SCRAM-SHA-256, both roles, as pure computation.

Owns the messages and keys of RFC 5802 and RFC 7677 in PostgreSQL's dialect (the user name inside the
exchange is ignored, tls-server-end-point is the one channel binding) and the verifier text that PostgreSQL
keeps in ``rolpassword``. Must know nothing of sockets, of the wire's framing or of the config.

Every exchange is an object used once, in order: a server gives ``challenge`` then ``verify``, a client
``first``, ``read_challenge``, ``respond``, ``verify``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass
from typing import Final, Self

MECHANISM: Final = "SCRAM-SHA-256"
MECHANISM_PLUS: Final = "SCRAM-SHA-256-PLUS"
"""With channel binding: the exchange is worth nothing to whoever sits between two TLS connections."""
BINDING_TYPE: Final = "tls-server-end-point"
DEFAULT_ITERATIONS: Final = 4096
"""PostgreSQL's own default (``scram_iterations``), and RFC 7677's minimum."""
MAX_ITERATIONS: Final = 1_000_000
"""More than any sane verifier holds: a hostile server must not keep us hashing for minutes."""
SALT_BYTES: Final = 16
MAX_SALT_BYTES: Final = 1024
MAX_NONCE_CHARACTERS: Final = 1024
MAX_MESSAGE_BYTES: Final = 4096
_NONCE_BYTES: Final = 18
_DIGEST_BYTES: Final = 32

_NONCE: Final = re.compile(rf"[\x21-\x2b\x2d-\x7e]{{1,{MAX_NONCE_CHARACTERS}}}")
_VERIFIER: Final = re.compile(
    r"SCRAM-SHA-256\$([1-9][0-9]{0,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)"
)
_CLIENT_FIRST: Final = re.compile(
    r"(?P<gs2>(?P<binding>[^,]*),(?P<authzid>[^,]*),)(?P<bare>n=[^,]*,r=(?P<nonce>[^,]*)(?:,[A-Za-z]=[^,]*)*)",
    re.DOTALL,
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<without_proof>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,[A-Za-z]=[^,]*)*),p=(?P<proof>[^,]*)",
    re.DOTALL,
)
_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[^,]*),s=(?P<salt>[^,]*),i=(?P<iterations>[1-9][0-9]{0,9})(?:,[A-Za-z]=[^,]*)*", re.DOTALL
)
_SERVER_FINAL: Final = re.compile(r"v=(?P<signature>[^,]*)(?:,[A-Za-z]=[^,]*)*", re.DOTALL)


class ScramError(Exception):
    """The other side broke the exchange: malformed, out of bounds, or not offered. Safe to show."""

    def __init__(self, message: str, sqlstate: str = "08P01") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class ProofError(Exception):
    """The other side does not know the password. Carries no text: the caller words the refusal."""


@dataclass(frozen=True, slots=True, repr=False)
class Verifier:
    """What a server must know to check a password, without knowing it.

    ``str()`` gives PostgreSQL's text, ``SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>``.
    ``repr`` is left bare so that no log carries keys.
    """

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read PostgreSQL's text. Raises ValueError, whose message never quotes the text."""
        match = _VERIFIER.fullmatch(text)
        if match is None:
            raise ValueError(
                "not a SCRAM-SHA-256 verifier; "
                "expected SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>"
            )
        try:
            salt, stored_key, server_key = (_unbase64(part) for part in match.groups()[1:])
        except ScramError:
            raise ValueError("the verifier's salt or keys are not base64") from None
        iterations = int(match[1])
        if iterations > MAX_ITERATIONS:
            raise ValueError(f"the verifier asks for more than {MAX_ITERATIONS} iterations")
        if not salt or len(stored_key) != _DIGEST_BYTES or len(server_key) != _DIGEST_BYTES:
            raise ValueError("the verifier's salt is empty or its keys are not 32 bytes long")
        return cls(iterations, salt, stored_key, server_key)

    @classmethod
    def derive(cls, password: str, salt: bytes | None = None, iterations: int = DEFAULT_ITERATIONS) -> Self:
        """The verifier of ``password``; the salt is random unless given."""
        salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        keys = ClientKeys.derive(password, salt, iterations)
        return cls(iterations, salt, hashlib.sha256(keys.client_key).digest(), keys.server_key)

    def __str__(self) -> str:
        salt, stored, server = (
            base64.b64encode(part).decode("ascii") for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    def __repr__(self) -> str:
        return "<Verifier>"


def mock_verifier(name: str, secret: bytes, iterations: int = DEFAULT_ITERATIONS) -> Verifier:
    """A verifier that no password fits, for a name that is not known.

    The salt depends on ``name`` and on ``secret`` (random, one a process) alone, so that asking twice tells
    nothing: PostgreSQL's ``mock_scram_secret`` does the same. The caller must refuse whatever proof arrives;
    that no known preimage of the keys exists is the second lock.
    """
    digest = hmac.digest(secret, name.encode("utf-8"), "sha256")
    keys = hmac.digest(secret, digest, "sha512")
    return Verifier(iterations, digest[:SALT_BYTES], keys[:_DIGEST_BYTES], keys[_DIGEST_BYTES:])


@dataclass(frozen=True, slots=True, repr=False)
class ClientKeys:
    """What a client needs of a password, derived once for a salt (RFC 5802 section 3)."""

    client_key: bytes
    server_key: bytes

    @classmethod
    def derive(cls, password: str, salt: bytes, iterations: int) -> Self:
        """Takes 1 ms for some 4,000 iterations: call it off the event loop."""
        salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode("utf-8"), salt, iterations)
        return cls(hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(salted, b"Server Key", "sha256"))

    def __repr__(self) -> str:
        return "<ClientKeys>"


class ServerExchange:
    """The server's side against one verifier. ``doomed`` refuses whatever proof comes.

    ``binding`` is the TLS connection's channel binding data; with it the bound mechanism is offered.
    """

    def __init__(
        self,
        verifier: Verifier,
        *,
        doomed: bool = False,
        nonce: str | None = None,
        binding: bytes | None = None,
    ) -> None:
        self._verifier = verifier
        self._doomed = doomed
        self._nonce = nonce or _new_nonce()
        self._offered_binding = binding
        self._bound_to = b""
        self._gs2_header = ""
        self._client_first_bare = ""
        self._server_first = ""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """What is offered, the stronger first, as libpq expects it."""
        return (MECHANISM,) if self._offered_binding is None else (MECHANISM_PLUS, MECHANISM)

    def challenge(self, client_first: bytes, mechanism: str = MECHANISM) -> bytes:
        """server-first-message for ``client_first``; ``mechanism`` is the client's choice among the offered.

        Raises ScramError.
        """
        text = _decode(client_first)
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise ScramError("malformed SCRAM message: the client's first message cannot be read")
        self._judge_binding(match["binding"], mechanism)
        if match["authzid"]:
            raise ScramError("client uses authorization identity, but it is not supported")
        nonce = _checked_nonce(match["nonce"])
        self._gs2_header = match["gs2"]
        self._client_first_bare = match["bare"]
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(self._verifier.salt).decode("ascii")
        self._server_first = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        return self._server_first.encode("ascii")

    def _judge_binding(self, flag: str, mechanism: str) -> None:
        """RFC 5802 section 6: what the client says of channel binding must fit what it chose."""
        if mechanism == MECHANISM_PLUS and self._offered_binding is not None:
            if flag != f"p={BINDING_TYPE}":
                raise ScramError("malformed SCRAM message: the channel binding chosen is not the one offered")
            self._bound_to = self._offered_binding
        elif flag == "y" and self._offered_binding is not None:
            # "y": the client could bind and was told that the server cannot. We have offered it, so somebody
            # in between has taken the offer away.
            raise ScramError("SCRAM channel binding negotiation error", "28000")
        elif flag not in ("n", "y"):
            raise ScramError("malformed SCRAM message: channel binding was not offered")

    def verify(self, client_final: bytes) -> bytes:
        """server-final-message where the proof holds. Raises ScramError or ProofError."""
        match = _CLIENT_FINAL.fullmatch(_decode(client_final))
        if match is None:
            raise ScramError("malformed SCRAM message: the client's final message cannot be read")
        expected = base64.b64encode(self._gs2_header.encode("utf-8") + self._bound_to)
        if not hmac.compare_digest(match["binding"].encode("utf-8"), expected):
            if self._bound_to:
                raise ScramError("SCRAM channel binding check failed", "28000")
            # Section 5.1: the header is repeated under the proof, so that nobody in between can change it.
            raise ScramError("malformed SCRAM message: the channel-binding data changed during the exchange")
        if match["nonce"] != self._nonce:
            raise ScramError("malformed SCRAM message: the nonce changed during the exchange")
        proof = _unbase64(match["proof"])
        if len(proof) != _DIGEST_BYTES:
            raise ScramError("malformed SCRAM message: the proof has the wrong length")
        auth_message = ",".join((self._client_first_bare, self._server_first, match["without_proof"])).encode(
            "utf-8"
        )
        signature = hmac.digest(self._verifier.stored_key, auth_message, "sha256")
        stored_key = hashlib.sha256(_xor(proof, signature)).digest()
        if not hmac.compare_digest(stored_key, self._verifier.stored_key) or self._doomed:
            raise ProofError
        server_signature = hmac.digest(self._verifier.server_key, auth_message, "sha256")
        return b"v=" + base64.b64encode(server_signature)


@dataclass(frozen=True, slots=True)
class Challenge:
    """What the server asks the password to be hashed with."""

    salt: bytes
    iterations: int


class ClientExchange:
    """The client's side: bound to ``binding``, or by ``could_bind`` telling the server that it might be.

    The latter is for TLS connections where the server offers no channel binding: one that did will know that
    its offer was taken away.
    """

    def __init__(
        self,
        *,
        user: str = "",
        nonce: str | None = None,
        binding: bytes | None = None,
        could_bind: bool = False,
    ) -> None:
        # PostgreSQL takes the name from the startup packet and ignores the one here; libpq sends none.
        self._nonce = nonce or _new_nonce()
        self._gs2_header = "y,," if could_bind else "n,,"
        if binding is not None:
            self._gs2_header = f"p={BINDING_TYPE},,"
        self._bound_to = binding or b""
        self._first_bare = f"n={user},r={self._nonce}"
        self._server_first = ""
        self._combined_nonce = ""
        self._expected_signature = b""

    def first(self) -> bytes:
        """client-first-message."""
        return f"{self._gs2_header}{self._first_bare}".encode()

    def read_challenge(self, server_first: bytes) -> Challenge:
        """Check server-first-message and give what ``respond`` needs keys for. Raises ScramError."""
        self._server_first = _decode(server_first)
        match = _SERVER_FIRST.fullmatch(self._server_first)
        if match is None:
            raise ScramError("malformed SCRAM message from the server")
        nonce = _checked_nonce(match["nonce"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's SCRAM nonce does not extend ours")
        iterations = int(match["iterations"])
        if iterations > MAX_ITERATIONS:
            raise ScramError(f"the server asks for more than {MAX_ITERATIONS} SCRAM iterations")
        salt = _unbase64(match["salt"])
        if not 0 < len(salt) <= MAX_SALT_BYTES:
            raise ScramError("the server's SCRAM salt is empty or too long")
        self._combined_nonce = nonce
        return Challenge(salt, iterations)

    def respond(self, keys: ClientKeys) -> bytes:
        """client-final-message, with keys derived for the challenge that was read."""
        channel = base64.b64encode(self._gs2_header.encode("ascii") + self._bound_to).decode("ascii")
        without_proof = f"c={channel},r={self._combined_nonce}"
        auth_message = ",".join((self._first_bare, self._server_first, without_proof)).encode("utf-8")
        stored_key = hashlib.sha256(keys.client_key).digest()
        proof = _xor(keys.client_key, hmac.digest(stored_key, auth_message, "sha256"))
        self._expected_signature = hmac.digest(keys.server_key, auth_message, "sha256")
        return f"{without_proof},p={base64.b64encode(proof).decode('ascii')}".encode("ascii")

    def verify(self, server_final: bytes) -> None:
        """Check that the server knows the password's verifier. Raises ScramError or ProofError."""
        match = _SERVER_FINAL.fullmatch(_decode(server_final))
        if match is None:
            raise ScramError("malformed SCRAM message from the server")
        signature = _unbase64(match["signature"])
        if not self._expected_signature or not hmac.compare_digest(signature, self._expected_signature):
            raise ProofError


def saslprep(password: str) -> str:
    """RFC 4013 preparation; a password that it forbids is used as it is, as ``pg_saslprep``'s callers do."""
    if password.isascii():
        return password
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared or any(prohibits(c) for c in prepared for prohibits in _PROHIBITED):
        return password
    has_right_to_left = any(stringprep.in_table_d1(c) for c in prepared)
    if has_right_to_left and (
        any(stringprep.in_table_d2(c) for c in prepared)
        or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1]))
    ):
        return password
    return prepared


_PROHIBITED: Final = (
    # RFC 4013 sections 2.3 and 2.5.
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def _new_nonce() -> str:
    return base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode("ascii")


def _checked_nonce(text: str) -> str:
    if _NONCE.fullmatch(text) is None:
        raise ScramError("malformed SCRAM message: the nonce is empty, too long or not printable")
    return text


def _decode(message: bytes) -> str:
    if len(message) > MAX_MESSAGE_BYTES:
        raise ScramError("malformed SCRAM message: too long")
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise ScramError("malformed SCRAM message: not UTF-8") from None


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ScramError("malformed SCRAM message: not base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
