"""What looks like a secret, and pieces of texts that may have one."""

from hypothesis import strategies as st

from longshore.core.text.sanitise import MASK

# Put together here, so that no scanner takes this file for a leak.
ANTHROPIC = "sk-" + "ant-api03-" + "AbC1" * 8
OPENAI = "sk-" + "proj-" + "abcdefghijklmnop1234"
AWS_ID = "AKIA" + "IOSFODNN7EXAMPLE"
AWS_SECRET = "wJalrXUtnFEMI" + "/K7MDENG/bPxRfiCYEXAMPLEKEY"
GITHUB = "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789"
SLACK = "xoxb" + "-123456789012-abcdefGHIJ"
GOOGLE = "AIza" + "SyA-1234567890abcdefghijklmnopqrstu"
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxIn0." + "c2lnbmF0dXJl"
SENDGRID = "SG." + "a" * 22 + "." + "b" * 43
OWN = "lsk_" + "a" * 43
STRIPE = "sk_" + "live_" + "4eC39HqLyjWDarjtT1"
GENERATED = "Zx81kQ0vRt5yLm2Np9Wb3Ds6Hf7Jg4Ac"
PEM = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEpAIBAAKC\nAQEA\n-----END RSA PRIVATE " + "KEY-----"

fragments = st.sampled_from(
    [
        "password", "token", "Authorization", "Bearer", "Cookie:", "--api-key", "=", ": ", ":", " ",
        "'", '"', "\\", "://", "u:", "@", "/", "?", "&", "sig=", ",", ";", ")", "]", "[", "<", ">",
        "\n", MASK, "[masked", "b'", "Digest", ANTHROPIC, AWS_ID, GENERATED, GENERATED[:20], JWT,
        PEM,
        PEM[:34], "null", "abc",
    ]
)  # fmt: skip
