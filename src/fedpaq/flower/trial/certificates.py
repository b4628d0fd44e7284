"""Certificates and node keys for a trial deployment; a real one takes them from its own authority."""

import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

VALID_DAYS = 7


def write_certificates(folder: Path) -> None:
    """Write ca.crt, server.crt (127.0.0.1, localhost) and server.key, readable by the owner only.

    The authority's own key is never written, so it signs nothing else.
    """
    authority = trustme.CA(path_length=0, organization_name="fedpaq trial")
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=VALID_DAYS)
    server = authority.issue_cert("127.0.0.1", "localhost", organization_name="fedpaq trial", not_after=end)
    _write(folder / "ca.crt", authority.cert_pem.bytes())
    _write(folder / "server.crt", server.cert_chain_pems[0].bytes())
    _write(folder / "server.key", server.private_key_pem.bytes())


def write_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a SuperNode's key pair in OpenSSH form; return (private, public)."""
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    form, nothing = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    _write(private, key.private_bytes(serialization.Encoding.PEM, form, nothing))
    encoding, shared = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    _write(public, key.public_key().public_bytes(encoding, shared))
    return private, public


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
