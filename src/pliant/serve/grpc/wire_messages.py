"""The messages of the protocol's gRPC service, as classes.

Field names, numbers and types are those of `inference.GRPCInferenceService` in the Open Inference Protocol
(Apache-2.0) and in Triton's extensions of it (BSD-3-Clause); a test compares them with those of
`tritonclient`. The classes live in a descriptor pool of their own: the generated modules of two clients
(Triton's, KServe's) register the same names in the process-wide pool, and a node in that process must not
conflict with them. Streams of responses (`ModelStreamInfer`) are not supported.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "inference.GRPCInferenceService"
_PACKAGE = "inference"
_ONEOF = "parameter_choice"

METHODS = (
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"),
    *("ModelConfig", "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
)
"""Each method takes a `...Request` message and returns a `...Response` message."""

_DATA_TYPES = (
    *("INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING", "BF16"),
)
_ENUMS = {"DataType": {f"TYPE_{name}": number for number, name in enumerate(_DATA_TYPES)}}

# The fields of each message as `type name number`: `[]` marks a repeated field, `{}` a map with string keys,
# `|` a member of the message's oneof.
_NAMED = "string name 1, string version 2"
_CHOICES = "bool| bool_param 1, int64| int64_param 2, string| string_param 3"
_REPOSITORY_CALL = "string repository_name 1, string model_name 2, ModelRepositoryParameter{} parameters 3"
_TENSOR = "string name 1, string datatype 2, int64[] shape 3"
_GIVEN_TENSOR = f"{_TENSOR}, InferParameter{{}} parameters 4, InferTensorContents contents 5"
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready 1",
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": "bool ready 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name 1, string version 2, string[] extensions 3",
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "ModelMetadataResponse": (
        "string name 1, string[] versions 2, string platform 3, "
        "ModelMetadataResponse.TensorMetadata[] inputs 4, ModelMetadataResponse.TensorMetadata[] outputs 5"
    ),
    "InferParameter": f"{_CHOICES}, double| double_param 4, uint64| uint64_param 5",
    "InferTensorContents": (
        "bool[] bool_contents 1, int32[] int_contents 2, int64[] int64_contents 3, uint32[] uint_contents 4, "
        "uint64[] uint64_contents 5, float[] fp32_contents 6, double[] fp64_contents 7, "
        "bytes[] bytes_contents 8"
    ),
    "ModelInferRequest.InferInputTensor": _GIVEN_TENSOR,
    "ModelInferRequest.InferRequestedOutputTensor": "string name 1, InferParameter{} parameters 2",
    "ModelInferRequest": (
        "string model_name 1, string model_version 2, string id 3, InferParameter{} parameters 4, "
        "ModelInferRequest.InferInputTensor[] inputs 5, "
        "ModelInferRequest.InferRequestedOutputTensor[] outputs 6, bytes[] raw_input_contents 7"
    ),
    "ModelInferResponse.InferOutputTensor": _GIVEN_TENSOR,
    "ModelInferResponse": (
        "string model_name 1, string model_version 2, string id 3, InferParameter{} parameters 4, "
        "ModelInferResponse.InferOutputTensor[] outputs 5, bytes[] raw_output_contents 6"
    ),
    "ModelConfigRequest": _NAMED,
    "ModelConfigResponse": "ModelConfig config 1",
    "ModelInput": "string name 1, DataType data_type 2, int64[] dims 4, bool optional 8",
    "ModelOutput": "string name 1, DataType data_type 2, int64[] dims 3",
    "ModelParameter": "string string_value 1",
    "ModelConfig": (
        "string name 1, string platform 2, string backend 17, int32 max_batch_size 4, ModelInput[] input 5, "
        "ModelOutput[] output 6, ModelParameter{} parameters 14"
    ),
    "ModelStatisticsRequest": _NAMED,
    "StatisticDuration": "uint64 count 1, uint64 ns 2",
    "InferStatistics": (
        "StatisticDuration success 1, StatisticDuration fail 2, StatisticDuration queue 3, "
        "StatisticDuration compute_input 4, StatisticDuration compute_infer 5, "
        "StatisticDuration compute_output 6"
    ),
    "InferBatchStatistics": (
        "uint64 batch_size 1, StatisticDuration compute_input 2, StatisticDuration compute_infer 3, "
        "StatisticDuration compute_output 4"
    ),
    "ModelStatistics": (
        "string name 1, string version 2, uint64 last_inference 3, uint64 inference_count 4, "
        "uint64 execution_count 5, InferStatistics inference_stats 6, InferBatchStatistics[] batch_stats 7"
    ),
    "ModelStatisticsResponse": "ModelStatistics[] model_stats 1",
    "RepositoryIndexRequest": "string repository_name 1, bool ready 2",
    "RepositoryIndexResponse.ModelIndex": "string name 1, string version 2, string state 3, string reason 4",
    "RepositoryIndexResponse": "RepositoryIndexResponse.ModelIndex[] models 1",
    "ModelRepositoryParameter": f"{_CHOICES}, bytes| bytes_param 4",
    "RepositoryModelLoadRequest": _REPOSITORY_CALL,
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": _REPOSITORY_CALL,
    "RepositoryModelUnloadResponse": "",
}


@dataclass(frozen=True, slots=True)
class _Field:
    """A parsed field of `_MESSAGES`; `kind` is a scalar, an enum or another message."""

    name: str
    number: int
    kind: str
    is_repeated: bool
    is_map: bool
    is_choice: bool


def message(name: str) -> Any:
    """The class of a message, such as `ModelInferRequest.InferInputTensor`."""
    return _CLASSES[name]


def _fields(text: str) -> Iterator[_Field]:
    for field in text.split(", ") if text else ():
        kind, name, number = field.split()
        yield _Field(
            name, int(number), kind.rstrip("[]{}|"), kind.endswith("[]"), kind.endswith("{}"), "|" in kind
        )


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="pliant/inference.proto", package=_PACKAGE, syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    made: dict[str, DescriptorProto] = {}
    for name in sorted(_MESSAGES):  # an outer message before its nested ones
        outer, _, inner = name.rpartition(".")
        made[name] = made[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=name)
        for field in _fields(_MESSAGES[name]):
            _add(made[name], field, name)
    return file


def _add(message: DescriptorProto, field: _Field, within: str) -> None:
    if field.is_map:  # as protoc writes it: a repeated message of key and value
        entry = message.nested_type.add(name=f"{field.name.capitalize()}Entry")
        entry.options.map_entry = True
        _typed(entry.field.add(name="key", number=1, label="LABEL_OPTIONAL"), "string")
        _typed(entry.field.add(name="value", number=2, label="LABEL_OPTIONAL"), field.kind)
    label = "LABEL_REPEATED" if field.is_repeated or field.is_map else "LABEL_OPTIONAL"
    added = message.field.add(name=field.name, number=field.number, label=label)
    _typed(added, f"{within}.{field.name.capitalize()}Entry" if field.is_map else field.kind)
    if field.is_choice:
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONEOF)
        added.oneof_index = 0


def _typed(field: FieldDescriptorProto, kind: str) -> None:
    scalar = FieldDescriptorProto.Type.DESCRIPTOR.values_by_name.get(f"TYPE_{kind.upper()}")
    if scalar is not None:
        field.type = scalar.number
        return
    field.type = FieldDescriptorProto.TYPE_ENUM if kind in _ENUMS else FieldDescriptorProto.TYPE_MESSAGE
    field.type_name = f".{_PACKAGE}.{kind}"


def _classes() -> dict[str, Any]:
    pool = DescriptorPool()
    pool.Add(_file())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


_CLASSES = _classes()
