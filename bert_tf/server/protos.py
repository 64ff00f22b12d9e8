"""The messages of TF Serving's config files that tensorflow-serving-api does not contain.

BatchingParameters (servables/tensorflow/session_bundle_config.proto), MonitoringConfig
(config/monitoring_config.proto) and SSLConfig (config/ssl_config.proto), with their field numbers there.
"""

from typing import Any

import google.protobuf.wrappers_pb2  # noqa: F401  adds the dependency to the pool
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

# Not in TF Serving's package, because a newer version of its API may contain these messages.
_FILE = """
name: "bert_tf/server/config.proto" package: "bert_tf.server" syntax: "proto3"
dependency: "google/protobuf/wrappers.proto"
message_type {
  name: "BatchingParameters"
  field { name: "max_batch_size" number: 1 type_name: ".google.protobuf.Int64Value" }
  field { name: "batch_timeout_micros" number: 2 type_name: ".google.protobuf.Int64Value" }
  field { name: "max_enqueued_batches" number: 3 type_name: ".google.protobuf.Int64Value" }
  field { name: "num_batch_threads" number: 4 type_name: ".google.protobuf.Int64Value" }
  field { name: "thread_pool_name" number: 5 type_name: ".google.protobuf.StringValue" }
  field { name: "allowed_batch_sizes" number: 6 type: TYPE_INT64 label: LABEL_REPEATED }
  field { name: "pad_variable_length_inputs" number: 7 type: TYPE_BOOL }
  field { name: "enable_large_batch_splitting" number: 8 type_name: ".google.protobuf.BoolValue" }
  field { name: "max_execution_batch_size" number: 9 type_name: ".google.protobuf.Int64Value" }
}
message_type {
  name: "PrometheusConfig"
  field { name: "enable" number: 1 type: TYPE_BOOL }
  field { name: "path" number: 2 type: TYPE_STRING }
}
message_type {
  name: "MonitoringConfig"
  field { name: "prometheus_config" number: 1 type_name: ".bert_tf.server.PrometheusConfig" }
}
message_type {
  name: "SSLConfig"
  field { name: "server_key" number: 1 type: TYPE_STRING }
  field { name: "server_cert" number: 2 type: TYPE_STRING }
  field { name: "custom_ca" number: 3 type: TYPE_STRING }
  field { name: "client_verify" number: 4 type: TYPE_BOOL }
}
"""
_pool = descriptor_pool.Default()
_pool.AddSerializedFile(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()).SerializeToString())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"bert_tf.server.{name}"))


BatchingParameters = _class("BatchingParameters")
MonitoringConfig = _class("MonitoringConfig")
SSLConfig = _class("SSLConfig")
