"""Task tokens: they come back as they were signed, and nothing else is believed."""

import hmac
import pickle
import string
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longshore.core.task_tokens import (
    TOKEN_LIFETIME,
    TOKEN_LIMIT_CHARACTERS,
    TaskToken,
    read_token,
    sign_token,
)
from longshore.errors import InvalidTaskToken

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SECRET = b"s" * 32
OLD_SECRET = b"o" * 40
ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
HEAD_AND_SIGNATURE_BYTES = 23 + 32


def a_token(**changes: object) -> TaskToken:
    facts = {
        "task_id": "job-a_fetch",
        "queue": "default",
        "receipt": "AQEB-receipt",
        "fence": 7,
        "expires_at": NOON + TOKEN_LIFETIME,
    }
    return TaskToken(**{**facts, **changes})


def signed(**changes: object) -> str:
    return sign_token(a_token(**changes), secret=SECRET)


def refusal_of(text: str, *, secrets: tuple[bytes, ...] = (SECRET,), now: datetime = NOON) -> str:
    with pytest.raises(InvalidTaskToken) as caught:
        read_token(text, secrets=secrets, now=now)
    return caught.value.reason


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)


@given(
    texts,
    texts,
    texts,
    st.integers(0, 2**64 - 1),
    st.datetimes(timezones=st.just(UTC)).filter(lambda moment: moment > NOON),
)
def test_a_token_reads_as_it_was_signed(task_id, queue, receipt, fence, expires_at) -> None:
    token = TaskToken(
        task_id=task_id, queue=queue, receipt=receipt, fence=fence, expires_at=expires_at
    )

    assert read_token(sign_token(token, secret=SECRET), secrets=[SECRET], now=NOON) == token


def test_the_text_is_base64url_without_padding() -> None:
    assert set(signed()) <= set(ALPHABET)


def test_the_same_token_is_always_the_same_text() -> None:
    assert signed() == signed()


def test_the_moment_of_expiry_survives_another_time_zone() -> None:
    elsewhere = a_token(expires_at=(NOON + TOKEN_LIFETIME).astimezone(timezone(timedelta(hours=5))))

    assert sign_token(elsewhere, secret=SECRET) == signed()


def test_texts_that_only_share_their_letters_sign_differently() -> None:
    assert signed(task_id="ab", queue="c") != signed(task_id="a", queue="bc")


@given(st.data())
def test_no_changed_character_is_accepted(data: st.DataObject) -> None:
    text = signed()
    index = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.sampled_from(ALPHABET))
    assume(character != text[index])

    reason = refusal_of(text[:index] + character + text[index + 1 :])

    assert reason in {"malformed", "signature", "version"}


def test_no_flipped_bit_is_accepted() -> None:
    raw = decoded(signed())

    reasons = {
        refusal_of(encoded(raw[:i] + bytes([raw[i] ^ 1 << bit]) + raw[i + 1 :]))
        for i in range(len(raw))
        for bit in range(8)
    }

    assert reasons == {"malformed", "signature", "version"}


def test_no_shorter_token_is_accepted() -> None:
    text = signed()

    reasons = {refusal_of(text[:length]) for length in range(len(text))}

    assert "expired" not in reasons


@given(st.text(ALPHABET, min_size=1, max_size=20), st.booleans())
def test_no_longer_token_is_accepted(extra: str, in_front: bool) -> None:
    text = extra + signed() if in_front else signed() + extra

    assert refusal_of(text) in {"malformed", "signature", "version"}


@given(st.integers(1, 100), st.integers(1, 100))
def test_no_token_with_bytes_in_another_order_is_accepted(item: int, other: int) -> None:
    raw = bytearray(decoded(signed()))
    item, other = item % len(raw), other % len(raw)
    assume(raw[item] != raw[other])

    raw[item], raw[other] = raw[other], raw[item]

    assert refusal_of(encoded(bytes(raw))) in {"malformed", "signature", "version"}


def test_a_text_moved_from_one_field_to_the_next_is_refused() -> None:
    raw = bytearray(decoded(signed(task_id="ab", queue="c")))
    raw[17:21] = (1).to_bytes(2, "big") + (2).to_bytes(2, "big")

    assert refusal_of(encoded(bytes(raw))) == "signature"


def test_other_spellings_of_the_same_bytes_are_refused() -> None:
    # One length in three leaves bits of the last character unused.
    text = next(text for n in range(3) if len(text := signed(queue="q" * n)) % 4 == 2)
    same_bytes = text[:-1] + ALPHABET[ALPHABET.index(text[-1]) | 1]

    assert decoded(same_bytes) == decoded(text)
    assert refusal_of(same_bytes) == "malformed"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda text: text + "==", id="padded"),
        pytest.param(lambda text: text + "\n", id="newline"),
        pytest.param(lambda text: " " + text, id="space"),
        pytest.param(lambda text: text[:9] + "!" + text[9:], id="foreign character inside"),
        pytest.param(lambda text: text[:-1] + "é", id="not ASCII"),
        pytest.param(lambda text: "", id="empty"),
        pytest.param(lambda text: "A", id="no whole byte"),
        pytest.param(lambda text: "AQ", id="a version and nothing else"),
        pytest.param(lambda text: "A" * (TOKEN_LIMIT_CHARACTERS + 1), id="endless"),
    ],
)
def test_what_is_no_token_at_all_is_malformed(spoil) -> None:
    assert refusal_of(spoil(signed())) == "malformed"


def test_bytes_that_no_length_accounts_for_are_malformed() -> None:
    raw = decoded(signed())

    assert refusal_of(encoded(raw + b"x")) == "malformed"


def test_standard_base64_is_not_a_second_spelling() -> None:
    text = next(text for n in range(500) if {"-", "_"} & set(text := signed(fence=n)))

    assert refusal_of(text.replace("-", "+").replace("_", "/")) == "malformed"


def test_an_unknown_version_and_a_forgery_are_different_reasons() -> None:
    raw = decoded(signed())

    assert refusal_of(encoded(b"\x02" + raw[1:])) == "version"


def test_a_token_of_another_secret_is_refused() -> None:
    assert refusal_of(signed(), secrets=(OLD_SECRET,)) == "signature"


def test_a_signature_of_the_same_secret_for_another_purpose_is_refused() -> None:
    body = decoded(signed())[:-32]

    forged = encoded(body + hmac.digest(SECRET, body, "sha256"))

    assert refusal_of(forged) == "signature"


@pytest.mark.parametrize("secrets", [(SECRET, OLD_SECRET), (OLD_SECRET, SECRET)])
def test_any_of_several_secrets_reads_a_token(secrets: tuple[bytes, ...]) -> None:
    assert read_token(signed(), secrets=secrets, now=NOON) == a_token()


def test_a_token_is_good_until_just_before_its_expiry() -> None:
    last_moment = NOON + TOKEN_LIFETIME - timedelta(microseconds=1)

    assert read_token(signed(), secrets=[SECRET], now=last_moment) == a_token()


def test_a_token_is_refused_at_its_expiry() -> None:
    assert refusal_of(signed(), now=NOON + TOKEN_LIFETIME) == "expired"


def test_a_forged_token_is_not_called_expired() -> None:
    assert refusal_of(signed(), secrets=(OLD_SECRET,), now=NOON + TOKEN_LIFETIME) == "signature"


def test_a_refusal_contains_neither_token_nor_receipt() -> None:
    text = signed()

    with pytest.raises(InvalidTaskToken) as caught:
        read_token(text[:-4] + "AAAA", secrets=[SECRET], now=NOON)

    shown = f"{caught.value!s} {caught.value!r} {caught.value.__cause__} {caught.value.__context__}"
    assert text[:-4] not in shown
    assert "AQEB-receipt" not in shown


def test_a_refusal_of_bad_base64_does_not_carry_the_text_along() -> None:
    with pytest.raises(InvalidTaskToken) as caught:
        read_token("A", secrets=[SECRET], now=NOON)

    assert caught.value.__suppress_context__


def test_a_token_does_not_show_its_receipt() -> None:
    assert "AQEB-receipt" not in repr(a_token())


def test_a_token_survives_pickle() -> None:
    assert pickle.loads(pickle.dumps(a_token())) == a_token()  # noqa: S301


@pytest.mark.parametrize("secret", [b"", b"s" * 31])
def test_a_short_secret_signs_nothing(secret: bytes) -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        sign_token(a_token(), secret=secret)


def test_a_short_secret_among_good_ones_reads_nothing() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        read_token(signed(), secrets=[SECRET, b"short"], now=NOON)


def test_reading_without_a_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one secret"):
        read_token(signed(), secrets=[], now=NOON)


def test_the_longest_receipt_that_fits_is_signed_and_one_more_is_not() -> None:
    names = len("job-a_fetch") + len("default")
    longest = TOKEN_LIMIT_CHARACTERS * 3 // 4 - HEAD_AND_SIGNATURE_BYTES - names

    text = signed(receipt="r" * longest)

    assert read_token(text, secrets=[SECRET], now=NOON).receipt == "r" * longest
    with pytest.raises(ValueError, match="use a shorter task id, queue name or receipt"):
        signed(receipt="r" * (longest + 1))


@pytest.mark.parametrize("fence", [-1, 2**64])
def test_a_fence_beyond_64_bits_is_refused(fence: int) -> None:
    with pytest.raises(ValueError, match="fence must be"):
        a_token(fence=fence)


def test_an_expiry_without_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="expires_at must have a time zone"):
        a_token(expires_at=datetime(2026, 1, 5))  # noqa: DTZ001
