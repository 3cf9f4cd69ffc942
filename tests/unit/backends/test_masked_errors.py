"""The masker of secrets leaves the sentences of the backends' error tables alone."""

from __future__ import annotations

from collections.abc import Iterator

import jobpool_backends.beanstalk.connection
import jobpool_backends.errors
import jobpool_backends.postgres.errors
import jobpool_backends.redis.connection
import jobpool_backends.servicebus.errors
from jobpool.message.masking import Masker
from jobpool_backends.errors import Meaning


def _sentences(value: object) -> Iterator[str]:
    if isinstance(value, Meaning):
        yield value.text
    elif isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _sentences(one)


def test_no_mend_is_masked() -> None:
    for module in (
        jobpool_backends.errors,
        jobpool_backends.beanstalk.connection,
        jobpool_backends.postgres.errors,
        jobpool_backends.redis.connection,
        jobpool_backends.servicebus.errors,
    ):
        texts = [text for name, value in vars(module).items() if name[:2] != "__" for text in _sentences(value)]
        assert texts, module
        assert [text for text in texts if Masker().text(text) != text] == []
