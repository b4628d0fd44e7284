"""Certificates and node keys for a trial deployment; a real one takes them from its own authority."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID_DAYS = 7


def write_certificates(folder: Path) -> None:
    """Write ca.crt, server.crt (127.0.0.1, localhost) and server.key, readable by the owner only."""
    authority_key, server_key = _new_key(), _new_key()
    authority = _name("fedpaq trial authority")
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    certificate = _certificate(authority, authority, authority_key, authority_key, [(constraints, True)])
    here = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    leaf = x509.BasicConstraints(ca=False, path_length=None)
    extensions = [(x509.SubjectAlternativeName(here), False), (leaf, True)]
    server = _certificate(_name("127.0.0.1"), authority, server_key, authority_key, extensions)
    _write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
    _write(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM))
    _write(folder / "server.key", _private_bytes(server_key, serialization.PrivateFormat.PKCS8))


def write_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a SuperNode's key pair in OpenSSH form; return (private, public)."""
    key = _new_key()
    private, public = folder / name, folder / f"{name}.pub"
    _write(private, _private_bytes(key, serialization.PrivateFormat.OpenSSH))
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    _write(public, key.public_key().public_bytes(encoding, form))
    return private, public


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    extensions: list[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer, hashes.SHA256())


def _private_bytes(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
