"""The cluster's own certificate authority, and the certificates and keys that it needs."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=30)
CLOCK_SLACK = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Subject:
    """Whom a certificate names.

    Attributes:
        name: Common name: the user, to Kubernetes.
        groups: Organisations: the user's groups.
        addresses: IP addresses and DNS names that a server with this certificate may be reached at.
    """

    name: str
    groups: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class Authority:
    """A certificate authority that lives in a folder."""

    def __init__(self, folder: Path, now: datetime.datetime) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "multigraft test cluster")])
        builder = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        certificate = builder.add_extension(_key_usage(authority=True), critical=True).sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        self.key = folder / "ca.key"
        _write_key(self.key, self._key)

    def issue(self, file_name: str, subject: Subject) -> Pair:
        """Write `file_name`.crt and .key: good for a server and for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in subject.groups]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, subject.name))
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            self._builder(x509.Name(attributes), key)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if subject.addresses:
            names = [_general_name(address) for address in subject.addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_key(pair.key, key)
        return pair

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - CLOCK_SLACK)
            .not_valid_after(self._now + LIFETIME)
        )


def write_token_keys(folder: Path) -> None:
    """Write the key pair that service-account tokens are signed and checked with."""
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder / "tokens.key", key)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "tokens.pub").write_bytes(public)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
