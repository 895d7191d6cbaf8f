"""The messages of the Open Inference Protocol's gRPC service, as Protocol Buffers classes made from the text below.

Only names and numbers of fields matter on the wire, so messages that the public definition nests stand side by side here.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"
DEFINITIONS = """
message ServerLiveRequest {}
message ServerLiveResponse { bool live = 1; }
message ServerReadyRequest {}
message ServerReadyResponse { bool ready = 1; }
message ModelReadyRequest { string name = 1; string version = 2; }
message ModelReadyResponse { bool ready = 1; }
message ServerMetadataRequest {}
message ServerMetadataResponse { string name = 1; string version = 2; repeated string extensions = 3; }
message ModelMetadataRequest { string name = 1; string version = 2; }
message TensorMetadata { string name = 1; string datatype = 2; repeated int64 shape = 3; }
message ModelMetadataResponse {
  string name = 1; repeated string versions = 2; string platform = 3; repeated TensorMetadata inputs = 4;
  repeated TensorMetadata outputs = 5;
}
message InferParameter {
  oneof bool bool_param = 1; oneof int64 int64_param = 2; oneof string string_param = 3; oneof double double_param = 4;
  oneof uint64 uint64_param = 5;
}
message InferTensorContents {
  repeated bool bool_contents = 1; repeated int32 int_contents = 2; repeated int64 int64_contents = 3;
  repeated uint32 uint_contents = 4; repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6;
  repeated double fp64_contents = 7; repeated bytes bytes_contents = 8;
}
message InferInputTensor {
  string name = 1; string datatype = 2; repeated int64 shape = 3; map InferParameter parameters = 4;
  InferTensorContents contents = 5;
}
message InferRequestedOutputTensor { string name = 1; map InferParameter parameters = 2; }
message ModelInferRequest {
  string model_name = 1; string model_version = 2; string id = 3; map InferParameter parameters = 4;
  repeated InferInputTensor inputs = 5; repeated InferRequestedOutputTensor outputs = 6; repeated bytes raw_input_contents = 7;
}
message InferOutputTensor {
  string name = 1; string datatype = 2; repeated int64 shape = 3; map InferParameter parameters = 4;
  InferTensorContents contents = 5;
}
message ModelInferResponse {
  string model_name = 1; string model_version = 2; string id = 3; map InferParameter parameters = 4;
  repeated InferOutputTensor outputs = 5; repeated bytes raw_output_contents = 6;
}
message ModelStreamInferResponse { string error_message = 1; ModelInferResponse infer_response = 2; }
message ModelConfigRequest { string name = 1; string version = 2; }
message ModelInput { string name = 1; int32 data_type = 2; repeated int64 dims = 4; }
message ModelOutput { string name = 1; int32 data_type = 2; repeated int64 dims = 3; }
message ModelConfig {
  string name = 1; string platform = 2; int32 max_batch_size = 4; repeated ModelInput input = 5; repeated ModelOutput output = 6;
  string backend = 17;
}
message ModelConfigResponse { ModelConfig config = 1; }
message ModelStatisticsRequest { string name = 1; string version = 2; }
message StatisticDuration { uint64 count = 1; uint64 ns = 2; }
message InferStatistics {
  StatisticDuration success = 1; StatisticDuration fail = 2; StatisticDuration queue = 3; StatisticDuration compute_input = 4;
  StatisticDuration compute_infer = 5; StatisticDuration compute_output = 6;
}
message InferBatchStatistics { uint64 batch_size = 1; }
message ModelStatistics {
  string name = 1; string version = 2; uint64 inference_count = 4; uint64 execution_count = 5;
  InferStatistics inference_stats = 6; repeated InferBatchStatistics batch_stats = 7;
}
message ModelStatisticsResponse { repeated ModelStatistics model_stats = 1; }
message RepositoryIndexRequest { string repository_name = 1; bool ready = 2; }
message ModelIndex { string name = 1; string version = 2; string state = 3; string reason = 4; }
message RepositoryIndexResponse { repeated ModelIndex models = 1; }
message ModelRepositoryParameter {
  oneof bool bool_param = 1; oneof int64 int64_param = 2; oneof string string_param = 3; oneof bytes bytes_param = 4;
}
message RepositoryModelLoadRequest { string repository_name = 1; string model_name = 2; map ModelRepositoryParameter parameters = 3; }
message RepositoryModelLoadResponse {}
message RepositoryModelUnloadRequest { string repository_name = 1; string model_name = 2; map ModelRepositoryParameter parameters = 3; }
message RepositoryModelUnloadResponse {}
"""
FIELD = descriptor_pb2.FieldDescriptorProto
_MESSAGE = re.compile(r"message (\w+) \{([^}]*)\}")
_FIELD = re.compile(r"(?:(repeated|oneof|map) )?(\w+) (\w+) = (\d+);")


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tensorlogic/inference.proto", package="inference", syntax="proto3")
    for name, body in _MESSAGE.findall(DEFINITIONS):
        message = file.message_type.add(name=name)
        for rule, kind, field, number in _FIELD.findall(body):
            label = FIELD.LABEL_REPEATED if rule in ("repeated", "map") else FIELD.LABEL_OPTIONAL
            new = message.field.add(name=field, number=int(number), label=label)
            if rule == "map":
                entry = message.nested_type.add(name=f"{field.capitalize()}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING)
                value = entry.field.add(name="value", number=2, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_MESSAGE)
                value.type_name = f".inference.{kind}"
                new.type, new.type_name = FIELD.TYPE_MESSAGE, f".inference.{name}.{entry.name}"
            elif kind[0].isupper():
                new.type, new.type_name = FIELD.TYPE_MESSAGE, f".inference.{kind}"
            else:
                new.type = getattr(FIELD, f"TYPE_{kind.upper()}")
            if rule == "oneof":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="parameter_choice")
                new.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()  # not that of other packages, which may define the same names
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{n}")) for n in names}


CLASSES = _classes()
