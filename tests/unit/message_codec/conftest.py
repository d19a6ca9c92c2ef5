"""Fixture of the message codec, which is built once."""

import pytest

from support import message_codec_build


@pytest.fixture(scope="session")
def codec():
    return message_codec_build.build()
