"""Make what a Flower network needs to be encrypted and closed to strangers, to try it out.

    python certificates.py keys --nodes 3 --host localhost --host 127.0.0.1

writes ``ca.crt`` (the authority; every machine gets it), ``server.crt`` and ``server.key`` (for the SuperLink), and
for each SuperNode ``node-N`` (private, for that device alone) and ``node-N.pub`` (to be registered). The authority's
own key is thrown away: to make more, run it again. In production, use the certificates of your organization.
"""

import argparse
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAYS = 365


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def certificate(subject, key, issuer, signer, extensions) -> bytes:
    """Return a certificate in PEM: ``signer``, the key of ``issuer``, vouches for ``key``."""
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name(issuer))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
    builder = builder.not_valid_after(now + datetime.timedelta(days=DAYS))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def private(key, format: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, format, serialization.NoEncryption())


def write(path: Path, content: bytes, secret: bool = False) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600 if secret else 0o644)  # never readable by others, not even while it is written
    path.write_bytes(content)
    print(path)


def make(folder: Path, hosts: list[str], nodes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        False,
    )  # fmt: skip
    signs = x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True})
    root = [(x509.BasicConstraints(ca=True, path_length=0), True), (signs, True), (identifier, False)]
    leaf = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.KeyUsage(**{**usage, "digital_signature": True}), True),
        (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([address(host) for host in hosts]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    ]
    write(folder / "ca.crt", certificate("fedtuner example CA", authority, "fedtuner example CA", authority, root))
    write(folder / "server.crt", certificate(hosts[0], server, "fedtuner example CA", authority, leaf))
    write(folder / "server.key", private(server, serialization.PrivateFormat.PKCS8), secret=True)
    for i in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        write(folder / f"node-{i}", private(key, serialization.PrivateFormat.OpenSSH), secret=True)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        write(folder / f"node-{i}.pub", public + b"\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make certificates and keys for a Flower network, to try it out.")
    parser.add_argument("folder", type=Path, help="where to write them")
    parser.add_argument("--nodes", type=int, default=3, help="how many SuperNodes (3)")
    parser.add_argument("--host", action="append", help="the SuperLink's name or address (localhost, 127.0.0.1)")
    arguments = parser.parse_args()
    make(arguments.folder, arguments.host or ["localhost", "127.0.0.1"], arguments.nodes)
