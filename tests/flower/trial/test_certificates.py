"""Certificates and node keys of a trial deployment."""

from __future__ import annotations

import datetime
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedpaq.flower.trial import certificates

pytestmark = pytest.mark.flower


@pytest.fixture(scope="module")
def trust(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust")
    certificates.write_certificates(folder)
    return folder


def load_certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_server_s_certificate_is_signed_by_the_authority_for_this_machine_only(trust):
    authority, server = load_certificate(trust / "ca.crt"), load_certificate(trust / "server.crt")
    server.verify_directly_issued_by(authority)
    authority.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1")]
    basic = x509.BasicConstraints
    assert authority.extensions.get_extension_for_class(basic).value.ca
    assert not server.extensions.get_extension_for_class(basic).value.ca
    assert server.not_valid_after_utc < datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=8)


def test_the_key_on_disk_is_the_server_s_and_nobody_else_may_read_it(trust):
    key = serialization.load_pem_private_key((trust / "server.key").read_bytes(), None)
    assert key.public_key() == load_certificate(trust / "server.crt").public_key()
    assert {path.stat().st_mode & 0o777 for path in trust.iterdir()} == {0o600}
    assert sorted(path.name for path in trust.iterdir()) == ["ca.crt", "server.crt", "server.key"]


def test_a_node_s_key_pair_fits_together_and_is_new_each_time(tmp_path):
    publics = set()
    for name in ("node-0", "node-1"):
        private, public = certificates.write_node_key(tmp_path, name)
        key = serialization.load_ssh_private_key(private.read_bytes(), None)
        assert isinstance(key.curve, ec.SECP384R1)
        assert serialization.load_ssh_public_key(public.read_bytes()) == key.public_key()
        assert private.stat().st_mode & 0o077 == 0
        publics.add(public.read_bytes())
    assert len(publics) == 2
