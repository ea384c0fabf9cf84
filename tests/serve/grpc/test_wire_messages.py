"""The messages are those that others generate from the protocol's published files."""

import pytest

from pliant.serve.grpc.wire_messages import METHODS, SERVICE, message

service = pytest.importorskip("tritonclient.grpc.service_pb2", reason="tritonclient is not installed")
NAMES = [f"{method}{side}" for method in METHODS for side in ("Request", "Response")]


def compare(ours: object, theirs: object) -> None:
    """Every field of ours is one of theirs: name, number, type, how often, which choice, and so within it."""
    others = {field.number: field for field in theirs.fields}  # type: ignore[attr-defined]
    for field in ours.fields:  # type: ignore[attr-defined]
        other = others[field.number]
        for what in ("name", "type", "is_repeated"):
            assert getattr(field, what) == getattr(other, what), field.full_name
        assert getattr(field.containing_oneof, "name", None) == getattr(other.containing_oneof, "name", None)
        if field.message_type is not None:
            assert field.message_type.full_name == other.message_type.full_name
            assert field.message_type.GetOptions().map_entry == other.message_type.GetOptions().map_entry
            compare(field.message_type, other.message_type)
        if field.enum_type is not None:
            assert field.enum_type.values_by_name.keys() == other.enum_type.values_by_name.keys()
            for name, value in field.enum_type.values_by_name.items():
                assert value.number == other.enum_type.values_by_name[name].number


@pytest.mark.parametrize("name", NAMES)
def test_a_message_is_the_published_one(name: str) -> None:
    """What a client of Triton or KServe sends is read as it was meant, and the other way round."""
    compare(message(name).DESCRIPTOR, service.DESCRIPTOR.message_types_by_name[name])


def test_requests_and_answers_have_every_published_field() -> None:
    """An unknown field would be dropped without a word. Configuration and statistics leave some out."""
    for name in NAMES:
        ours, theirs = message(name).DESCRIPTOR, service.DESCRIPTOR.message_types_by_name[name]
        assert len(ours.fields) == len(theirs.fields), name


def test_the_service_has_the_published_methods() -> None:
    """Streams of answers and shared memory are what is not offered."""
    published = service.DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]]
    assert published.full_name == SERVICE
    left_out = {method.name for method in published.methods} - {*METHODS}
    assert all("SharedMemory" in name or name in ("ModelStreamInfer", "TraceSetting", "LogSettings")
               for name in left_out), left_out  # fmt: skip
