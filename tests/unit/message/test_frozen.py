from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, fields

import pytest

from jobpool.message.envelope import JobEnvelope
from jobpool.message.frozen import maker
from jobpool.message.lease import JobLease, make_lease


@dataclass(frozen=True, slots=True)
class Value:
    name: str
    number: int = 7
    notes: list[str] = field(default_factory=list, compare=False)


make = maker(Value)


def test_what_is_made_is_what_the_class_makes() -> None:
    made = make("a", number=8)
    assert type(made) is Value
    assert made == Value("a", 8)
    assert hash(make_lease("a", "q", b"", 1, "o", 1.0, "memory")) is not None
    assert repr(made) == repr(Value("a", 8))


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        make("a").name = "b"  # type: ignore[misc]


def test_defaults_are_the_classes_and_never_shared() -> None:
    one, other = make("a"), make("a")
    one.notes.append("mine")
    assert (other.number, other.notes) == (7, [])


def test_a_missing_field_is_refused() -> None:
    with pytest.raises(TypeError):
        make()  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [JobLease, JobEnvelope])
def test_the_values_of_the_hot_path_have_nothing_that_a_maker_would_leave_out(kind: type) -> None:
    assert not hasattr(kind, "__post_init__")
    assert all(item.init for item in fields(kind))
