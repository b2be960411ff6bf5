"""JSON text of a child that stays encoded."""

from longshore.core.documents import EncodedJson


def test_long_text_is_handed_on_in_pieces_and_can_be_decoded() -> None:
    text = b'["' + b"x" * 600_000 + b'"]'

    for data in (text, bytearray(text), memoryview(text)):
        encoded = EncodedJson(data)
        pieces = list(encoded.pieces())
        assert b"".join(pieces) == text
        assert max(map(len, pieces)) == 256 * 1024
        assert encoded.decode() == ["x" * 600_000]
